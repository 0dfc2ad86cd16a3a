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

// simulateProgress shows the progress of a simulation: bytes read of all bytes, and requests decided.
type simulateProgress struct {
	bar   *progressbar.ProgressBar // nil: there is none
	read  atomic.Int64             // bytes
	shown time.Time
}

// progress adds a progress bar to a simulation.
func (o *simulateCommand) progress(to io.Writer, options *simulate.Options) *simulateProgress {
	p := &simulateProgress{}
	if o.Progress == "never" || o.Progress == "auto" && !isTerminal(to) {
		return p
	}
	total := int64(0)
	for _, name := range o.Logs {
		info, err := os.Stat(name)
		if name == "-" || err != nil || !info.Mode().IsRegular() {
			total = -1 // a spinner, because the size is not known
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
		_ = p.bar.Set64(p.read.Load()) // a bar that cannot be drawn is no error
	}
	return p
}

// stop removes the bar.
func (p *simulateProgress) stop() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// countingReader counts the bytes read from a file.
type countingReader struct {
	io.ReadCloser
	read *atomic.Int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.read.Add(int64(n))
	return n, err
}
