package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

// simulateProgress shows how far a simulation is: bytes read of all there are, and requests decided.
type simulateProgress struct {
	bar   *progressbar.ProgressBar // nil: nobody looks
	read  atomic.Int64             // bytes
	shown time.Time
}

// progress puts a bar in front of the logs of a simulation.
func (o *simulateCommand) progress(to io.Writer, options *simulate.Options) *simulateProgress {
	p := &simulateProgress{}
	if o.Progress == "never" || o.Progress == "auto" && !isTerminal(to) {
		return p
	}
	total := int64(0)
	for _, name := range o.Logs {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.Mode().IsRegular() {
			total = -1 // a spinner: how much comes is not known
			break
		}
		total += info.Size()
	}
	p.bar = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(to),
		progressbar.OptionShowBytes(true),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)
	for i := range options.Logs {
		open := options.Logs[i].Open
		options.Logs[i].Open = func() (io.ReadCloser, error) {
			f, err := open()
			if err != nil {
				return nil, err
			}
			return &countingReader{f, &p.read}, nil
		}
	}
	began := time.Now()
	options.Progress = func(requests int64) {
		now := time.Now()
		if now.Sub(p.shown) < 100*time.Millisecond {
			return
		}
		p.shown = now
		p.bar.Describe(fmt.Sprintf("%d requests, %.0f/s", requests, float64(requests)/now.Sub(began).Seconds()))
		_ = p.bar.Set64(p.read.Load()) // a bar that cannot be drawn stops nothing
	}
	return p
}

// stop takes the bar away.
func (p *simulateProgress) stop() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// countingReader counts what is read of a file.
type countingReader struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.read.Add(int64(n))
	return n, err
}
