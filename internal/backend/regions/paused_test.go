package regions_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// pausing are records of a process that is paused between computing and writing.
type pausing struct {
	backend.Records
	pause atomic.Int64 // once
}

func (p *pausing) Change(c *backend.RecordChange) {
	if c.Value != nil {
		time.Sleep(time.Duration(p.pause.Swap(0))) //nolint:forbidigo // virtual time
	}
	p.Records.Change(c)
}

// alone starts the only region of a list.
func alone(t *testing.T, records backend.Records) *regions.Store {
	t.Helper()
	s, err := regions.New(regions.Options{
		Store: memory.New(memory.Options{}), Records: records, Region: "a", Regions: []string{"a"}, Epoch: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
	return s
}

func takeOf(t *testing.T, s backend.Store, l *descriptor.Limit, hits int64) backend.Outcome {
	t.Helper()
	r := &backend.Request{Takes: []backend.Take{{Key: []byte("test|limit=x|x"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0]
}

// A process that was paused between computing and writing computes again: a take does not count in a window that has ended meanwhile.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &pausing{Records: memory.NewRecords(0)}
		s := alone(t, records)
		l := atHome("a", descriptor.Limit{Requests: 600, Window: descriptor.Window{Unit: descriptor.Minute}})
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute - 100*time.Millisecond))) //nolint:forbidigo // virtual time
		if o := takeOf(t, s, &l, 599); !o.Allowed {
			t.Fatalf("%+v", o)
		}
		records.pause.Store(int64(200 * time.Millisecond))
		if o := takeOf(t, s, &l, 1); !o.Allowed || o.Used != 1 {
			t.Errorf("%+v: the take belongs to the next window, and is its first one", o)
		}
		if o := takeOf(t, s, &l, 599); !o.Allowed || o.Used != 600 {
			t.Errorf("%+v: the window is used up", o)
		}
		if o := takeOf(t, s, &l, 1); o.Allowed {
			t.Errorf("%+v: one more", o)
		}
	})
}

// A take that is computed just before a window ends, and would be written after that, is computed again even if it was late by a moment only.
func TestPausedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &pausing{Records: memory.NewRecords(0)}
		s := alone(t, records)
		l := atHome("a", descriptor.Limit{Requests: 600, Window: descriptor.Window{Unit: descriptor.Minute}})
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute - 10*time.Millisecond))) //nolint:forbidigo // virtual time
		takeOf(t, s, &l, 599)
		records.pause.Store(int64(10 * time.Millisecond)) // less than a batch may be late elsewhere
		if o := takeOf(t, s, &l, 1); !o.Allowed || o.Used != 1 {
			t.Errorf("%+v: the take belongs to the next window", o)
		}
	})
}

// Limits without Regions cost nothing: the store passes their requests on.
func TestOthersCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := alone(t, memory.NewRecords(0))
		inner := memory.New(memory.Options{})
		l := descriptor.Limit{Requests: 1e6, Window: hour}
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		r := &backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		allocs := func(to backend.Store) float64 {
			return testing.AllocsPerRun(1000, func() { _, _ = to.Start(t.Context(), time.Now(), nil, r, nil) })
		}
		if through, direct := allocs(s), allocs(inner); through > direct {
			t.Errorf("%v allocations, %v without this store", through, direct)
		}
	})
}

func BenchmarkOthers(b *testing.B) {
	inner := memory.New(memory.Options{})
	s, err := regions.New(regions.Options{Store: inner, Records: memory.NewRecords(0), Region: "a", Regions: []string{"a"}, Epoch: 1})
	if err != nil {
		b.Fatal(err)
	}
	l := descriptor.Limit{Requests: 1e9, Window: hour}
	if err := l.Compile(); err != nil {
		b.Fatal(err)
	}
	r := &backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	var spent [2]time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for i, to := range []backend.Store{inner, s} {
			began := time.Now()
			for range 100 {
				_, _ = to.Start(b.Context(), began, nil, r, nil)
			}
			spent[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(spent[0].Nanoseconds())/float64(100*b.N), "ns/direct")
	b.ReportMetric(float64(spent[1].Nanoseconds())/float64(100*b.N), "ns/through")
}

// slow are records that are far away.
type slow struct{ backend.Records }

func (s slow) Change(c *backend.RecordChange) {
	time.Sleep(120 * time.Millisecond) //nolint:forbidigo // virtual time
	s.Records.Change(c)
}

// Trips that take longer than a batch may be late at first do not keep takes from being counted.
func TestSlowTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := alone(t, slow{memory.NewRecords(0)})
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		l := atHome("a", descriptor.Limit{Requests: 600, Window: hour})
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		if o := takeOf(t, s, &l, 1); !o.Allowed || o.Used != 1 {
			t.Errorf("%+v", o)
		}
	})
}

// broken is a resolver that panics.
type broken struct{}

// Resolve implements regions.Resolver.
func (broken) Resolve(time.Time, string, []descriptor.Entry, string) (backend.Counter, bool) {
	panic("broken")
}

// Rules implements regions.Resolver.
func (broken) Rules(time.Time) uint64 { return 0 }

// A panic while a question is answered reaches the caller of Answer, which can recover from it. It does not end the process.
func TestPanicWhileAnswering(t *testing.T) {
	s, err := regions.New(regions.Options{
		Store: memory.New(memory.Options{}), Records: memory.NewRecords(0), Region: "a", Regions: []string{"a", "b"}, Epoch: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetResolver(broken{})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = s.Answer(t.Context(), "b", 1, make([]regions.Query, 2))
}
