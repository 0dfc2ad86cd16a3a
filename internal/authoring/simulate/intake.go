package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
)

// intake is the reading part of a run: it turns logs into batches of requests in order of time.
type intake struct {
	options *Options
	order   *order
	full    chan *batch // batches ready for the engines
	free    chan *batch // empty batches to fill

	ctx    context.Context // context of read, for the callbacks of order
	batch  *batch          // the batch that is being filled
	fields []string
	hits   []uint64

	lines, requests, skipped, bad int64
	firstBad                      []BadLine
	missed                        accesslog.Missed
}

const (
	batches  = 4  // total number of batches
	badShown = 20 // bad lines in a report
)

func newIntake(o *Options) *intake {
	in := &intake{options: o, full: make(chan *batch, batches), free: make(chan *batch, batches),
		fields: make([]string, o.Mapping.Fields())}
	for range batches {
		in.free <- &batch{}
	}
	in.order = newOrder(o.Window.Microseconds(), in.release)
	return in
}

// read reads all logs, one after the other.
func (in *intake) read(ctx context.Context) error {
	in.ctx = ctx
	in.batch = <-in.free
	for i := range in.options.Logs {
		if err := in.readLog(ctx, i); err != nil {
			return err
		}
	}
	if err := in.order.flush(); err != nil {
		return err
	}
	return in.send(ctx)
}

func (in *intake) readLog(ctx context.Context, i int) error {
	log := &in.options.Logs[i]
	f, err := log.Open()
	if err != nil {
		return &LogError{log.Name, err}
	}
	defer f.Close()
	r, err := in.options.Mapping.NewReader(f)
	if err != nil {
		return &LogError{log.Name, err}
	}
	defer in.missed.Add(r)
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		rec, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err := in.passOver(log.Name, err); err != nil {
				return err
			}
			continue
		}
		if in.hits == nil && rec.Hits != nil {
			in.hits = make([]uint64, len(rec.Hits))
		}
		in.lines++
		if err := in.order.add(record{at: rec.At, seq: in.lines, log: int32(i), line: rec.Line}, rec.Fields,
			rec.Hits); err != nil {
			return err
		}
	}
}

// passOver records a bad line. It returns an error if there are too many.
func (in *intake) passOver(log string, err error) error {
	var bad *accesslog.LineError
	if !errors.As(err, &bad) {
		return &LogError{log, err}
	}
	in.lines++
	in.bad++
	if len(in.firstBad) < badShown {
		in.firstBad = append(in.firstBad, BadLine{log, bad.Line, bad.Msg})
	}
	if limit := in.options.MaxBadLines; limit >= 0 && in.bad > int64(limit) {
		return &BadLinesError{Max: limit, Lines: in.firstBad}
	}
	return nil
}

// tooMany returns an error if too large a share of the lines is bad.
func (in *intake) tooMany() error {
	most := in.options.MaxBadShare
	if share := 100 * float64(in.bad) / float64(max(in.lines, 1)); most <= 0 || share <= most {
		return nil
	}
	return &BadLinesError{Share: fmt.Sprintf("%d of %d lines cannot be used, which is more than %g%%:", in.bad, in.lines,
		most), Lines: in.firstBad}
}

// release receives sorted lines.
func (in *intake) release(recs []record, text []byte) error {
	s := string(text) // one allocation: the values of all requests are substrings of it
	for i := range recs {
		rec := &recs[i]
		readFields(s[rec.from:], in.fields, in.hits)
		b := in.batch
		n := len(b.requests)
		b.requests = append(b.requests, replayedRequest{at: rec.at, log: rec.log, line: rec.line})
		if !in.options.Mapping.Build(in.fields, in.hits, &b.arena, &b.requests[n].Request) {
			b.requests = b.requests[:n]
			in.skipped++
			continue
		}
		if n+1 == batchSize {
			if err := in.send(in.ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// send passes the batch on and takes an empty one.
func (in *intake) send(ctx context.Context) error {
	in.requests += int64(len(in.batch.requests))
	in.full <- in.batch // never blocks: the channel has room for all batches
	select {
	case in.batch = <-in.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nothing explains why there was no request.
func (in *intake) nothing() error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d lines", in.lines)
	if in.bad > 0 {
		fmt.Fprintf(&b, ", %d of them cannot be used, the first: %s", in.bad, &in.firstBad[0])
	}
	if in.skipped > 0 {
		fmt.Fprintf(&b, ", %d of them are skipped by the mapping", in.skipped)
		for _, e := range in.missed.Errors(in.options.Mapping) {
			fmt.Fprintf(&b, "\n  %s", e)
		}
	}
	if advice := in.options.Mapping.Advice(); advice != "" && in.bad > 0 && in.bad == in.lines {
		b.WriteString("\n  " + advice)
	}
	return fmt.Errorf("%w: %s", ErrNoRequest, b.String())
}

func place(log string, line int) string { return log + ":" + strconv.Itoa(line) }
