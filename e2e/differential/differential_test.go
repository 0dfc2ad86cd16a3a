package differential_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/e2e/differential"
	after "github.com/ratelimitd/ratelimitd/e2e/differential/adapter"
	before "github.com/ratelimitd/ratelimitd/e2e/differential/before/adapter"
)

const (
	stepsOfWorld = 1000
	shortWorlds  = 60
	stateEvery   = 100 // steps
)

// Package limiter makes the same decisions as the copy of an earlier version. A short run draws the same worlds each time.
// RATELIMITD_DIFFERENTIAL is how many steps a longer run has, or how long it takes, such as 10000000 or 4h; its first seed is
// RATELIMITD_DIFFERENTIAL_SEED, or one by the clock. A difference is reported with its seed, with which RATELIMITD_DIFFERENTIAL=1 shows
// it again.
func TestDecisionsAreTheSame(t *testing.T) {
	seed, worlds, end := uint64(1), uint64(shortWorlds), time.Time{}
	if long := os.Getenv("RATELIMITD_DIFFERENTIAL"); long != "" {
		seed = uint64(time.Now().UnixNano())
		if text := os.Getenv("RATELIMITD_DIFFERENTIAL_SEED"); text != "" {
			var err error
			if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		if steps, err := strconv.ParseUint(long, 10, 64); err == nil {
			worlds = (steps + stepsOfWorld - 1) / stepsOfWorld
		} else {
			d, err := time.ParseDuration(long)
			if err != nil {
				t.Fatalf("RATELIMITD_DIFFERENTIAL is neither a number nor a duration: %s", long)
			}
			worlds, end = 1<<62, time.Now().Add(d)
		}
	}
	var (
		running     sync.WaitGroup
		next, steps atomic.Uint64
		found       atomic.Pointer[string]
	)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		running.Go(func() {
			for found.Load() == nil && (end.IsZero() || time.Now().Before(end)) {
				n := next.Add(1) - 1
				if n >= worlds {
					return
				}
				w := differential.Draw(seed+n, stepsOfWorld)
				d, err := compare(w, len(w.Steps))
				switch {
				case err != nil:
					report := fmt.Sprintf("seed %d: %v", w.Seed, err)
					found.CompareAndSwap(nil, &report)
				case d != nil:
					report := fmt.Sprintf("after %d steps of other worlds: %s", steps.Load(), describe(w, first(w, d)))
					found.CompareAndSwap(nil, &report)
				default:
					steps.Add(uint64(len(w.Steps)))
				}
			}
		})
	}
	running.Wait()
	took := time.Since(began)
	t.Logf("first seed %d: %d steps in %v, %.0f a second", seed, steps.Load(), took.Round(time.Millisecond), float64(steps.Load())/took.Seconds())
	if report := found.Load(); report != nil {
		t.Error(*report)
	}
}

// difference is where two versions differ.
type difference struct {
	steps         int  // that were taken
	state         bool // what is counted differs, or events; else what the last step did
	before, after differential.Text
}

// compare takes the first steps of a world on both sides until they differ. It returns nil if they do not.
func compare(w *differential.World, count int) (*difference, error) {
	a, err := before.New(w)
	if err != nil {
		return nil, err
	}
	b, err := after.New(w)
	if err != nil {
		return nil, err
	}
	now := w.Start
	for i := range w.Steps[:count] {
		step := &w.Steps[i]
		now = step.Now
		a.Text, b.Text = a.Text[:0], b.Text[:0]
		a.Step(step)
		b.Step(step)
		if !bytes.Equal(a.Text, b.Text) {
			return &difference{i + 1, false, a.Text, b.Text}, nil
		}
		if (i+1)%stateEvery == 0 && i+1 < count {
			a.State(now)
			b.State(now)
			if !bytes.Equal(a.Text, b.Text) {
				return &difference{i + 1, true, a.Text, b.Text}, nil
			}
		}
	}
	a.Text, b.Text = a.Text[:0], b.Text[:0]
	a.End(now)
	b.End(now)
	if !bytes.Equal(a.Text, b.Text) {
		return &difference{count, true, a.Text, b.Text}, nil
	}
	return nil, nil
}

// first returns the earliest difference, from one that was found.
func first(w *differential.World, d *difference) *difference {
	if !d.state {
		return d
	}
	sort.Search(d.steps, func(n int) bool {
		earlier, err := compare(w, n)
		if err == nil && earlier != nil && earlier.steps <= d.steps {
			d = earlier
		}
		return earlier != nil
	})
	return d
}

// describe writes a difference for people.
func describe(w *differential.World, d *difference) string {
	step := &w.Steps[max(d.steps-1, 0)]
	asked, err := json.MarshalIndent(step, "", " ")
	if err != nil {
		return err.Error()
	}
	what := "what it does"
	if d.state {
		what = "what is counted, or events"
	}
	version, settings := w.Versions[step.Version], new(bytes.Buffer)
	fmt.Fprintf(settings, "%+v\n%+v", w.Options, version.Settings)
	return fmt.Sprintf("seed %d, step %d (kind %d): %s differs; - is before, + is after:\n%s\nstep: %s\nrules:\n%s\nsettings: %s\nagain: RATELIMITD_DIFFERENTIAL=1 RATELIMITD_DIFFERENTIAL_SEED=%d",
		w.Seed, d.steps, step.Kind, what, lines(d), asked, strings.Join(version.Files, "\n"), settings, w.Seed)
}

// lines returns the lines that differ, with some before and after them.
func lines(d *difference) string {
	return cmp.Diff(strings.Split(string(d.before), "\n"), strings.Split(string(d.after), "\n"))
}
