package redis

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// request returns a request with a number of takes.
func request(takes int) *inFlight {
	f := newInFlight().(*inFlight)
	r := &backend.Request{Takes: make([]backend.Take, takes), Outcomes: make([]backend.Outcome, takes)}
	for i := range r.Takes {
		r.Takes[i].Limit = &descriptor.Limit{}
	}
	f.init(context.Background(), 0, r, nil)
	f.enter(time.Time{}, 0, 0, 0)
	return f
}

// Two flushes may start at the same time. Further ones start when some time has passed since the latest, up to the
// number of connections.
func TestFlushesAreSpreadInTime(t *testing.T) {
	const ms = int64(spread)
	s := newSchedule(3)
	for i, c := range []struct {
		now   int64
		begin bool
	}{{10 * ms, true}, {10 * ms, true}, {10 * ms, false}, {11*ms - 1, false}, {11 * ms, true}, {20 * ms, false}} {
		if got := s.begin(c.now); got != c.begin {
			t.Errorf("step %d: another flush may begin: %v", i, got)
		}
	}
	s.free()
	if s.begin(11*ms + 1) {
		t.Error("a flush begins too soon after the latest")
	}
	if !s.begin(12 * ms) {
		t.Error("a slot that is free is not used")
	}
	if one := newSchedule(0); !one.begin(0) || one.begin(ms) {
		t.Error("without a known number of connections there is one flush at a time")
	}
}

// While a counter is hot, only one flush is in flight unless Redis is far away, and each flush carries more takes.
func TestHotCountersShareAFlush(t *testing.T) {
	s := newSchedule(10)
	s.begin(0)
	s.ended(0, 1, true)
	if s.begin(2) {
		t.Error("a second flush begins beside the first")
	}
	for range maxFlushHot + 10 {
		s.add(3, request(1))
	}
	if n := len(s.take(nil, nil)); n != maxFlushHot {
		t.Errorf("%d requests in a flush of a hot counter, want %d", n, maxFlushHot)
	}
	s.ended(3, 4, false)
	if n := len(s.take(nil, nil)); n != 10 {
		t.Errorf("%d requests are left, want 10", n)
	}
	if !s.begin(5) {
		t.Error("no second flush begins after the counter has cooled down")
	}
}

// A request is flushed immediately only if nothing waits, so none is overtaken. A flush takes the oldest requests and
// drops those whose callers have left.
func TestRequestsKeepTheirOrder(t *testing.T) {
	s := newSchedule(2)
	for range 2 {
		if !s.add(0, request(1), request(1)) {
			t.Fatal("requests wait although there is a slot")
		}
		if s.add(0, request(1)) {
			t.Fatal("a second flush begins for requests that the first one will take")
		}
		s.claimed = false
		if n := len(s.take(nil, nil)); n != 3 {
			t.Fatalf("%d requests in the flush, want 3", n)
		}
	}
	var all []*inFlight
	for range 5 {
		f := request(maxFlush / 2)
		all = append(all, f)
		if s.add(0, f) {
			t.Fatal("a request goes without a slot")
		}
	}
	s.free()
	if s.add(0, request(1)) {
		t.Error("a request overtakes those that wait")
	}
	if !s.claim() {
		t.Error("no worker flushes what waits")
	}
	if s.claim() {
		t.Error("two workers flush what waits")
	}
	all[1].answer(context.Canceled)
	var gone []*inFlight
	batch := s.take(nil, func(f *inFlight) { gone = append(gone, f) })
	if len(batch) != 2 || batch[0] != all[0] || batch[1] != all[2] || len(gone) != 1 || gone[0] != all[1] {
		t.Errorf("%d requests in the flush, %d dropped", len(batch), len(gone))
	}
	if len(s.waiting) != 3 || s.waiting[0] != all[3] {
		t.Errorf("%d requests wait", len(s.waiting))
	}
}

// Callers leave earlier while the timer of the queue is late, so that their answers are still in time.
func TestCallersLeaveEarlierIfTimersAreLate(t *testing.T) {
	const ms = time.Millisecond
	now := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), now.Add(20*ms))
	defer cancel()
	q := newQueue(&Store{}, 1)
	leaves := func(late time.Duration) time.Duration {
		q.late.Timer(now, late)
		f := newInFlight().(*inFlight)
		f.init(ctx, 0, &backend.Request{}, nil)
		f.enter(now, 0, 0, q.late.Now(now))
		return time.Duration(f.until)
	}
	if got := leaves(0); got != 17*ms {
		t.Errorf("it leaves after %s, want 17 ms", got)
	}
	if got := leaves(8 * ms); got != 16*ms {
		t.Errorf("with one timer that was 8 ms late it leaves after %s, want 16 ms", got)
	}
	for range 100 {
		leaves(20 * ms)
	}
	if got := leaves(0); got != 12*ms {
		t.Errorf("with timers that are 20 ms late it leaves after %s, want 12 ms", got)
	}
}

// Callers are checked when the first deadline comes, and otherwise only when they usually have their answers: each
// check wakes a sleeping process.
func TestWhenCallersAreChecked(t *testing.T) {
	const ms = int64(time.Millisecond)
	q := newQueue(&Store{}, 1)
	t.Cleanup(func() { q.timer.Stop() })
	now := q.now()
	q.mu.Lock() // held for all steps: the timer is a real one, and expire waits for the lock
	defer q.mu.Unlock()
	for _, step := range []struct {
		name      string
		at, until int64 // relative to now; until is 0 without a deadline
		slow      bool
		due       int64
	}{
		{"no deadline", 0, 0, false, 20 * ms},
		{"a later deadline", ms, 500 * ms, false, 20 * ms},
		{"a deadline before the check", ms, 17 * ms, false, 17 * ms},
		{"Redis is slow", 2 * ms, 500 * ms, true, 3 * ms},
		{"a deadline that is near", ms, ms + 1, false, 2 * ms},
		{"the check is near", ms, 500 * ms, true, 2 * ms},
	} {
		q.state.slow = step.slow
		until := step.until
		if until > 0 {
			until += now
		}
		q.watch(new(inFlight), now+step.at, until)
		due := q.due - now
		if due != step.due {
			t.Errorf("%s: checked after %d us, want %d", step.name, due/1000, step.due/1000)
		}
	}
}
