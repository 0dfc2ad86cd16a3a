package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// receiver is a destination with answers given by a test. It records the times of attempts, and the accepted events.
type receiver struct {
	answer func(ctx context.Context, n int) error // answers the n-th attempt

	mu       sync.Mutex
	attempts []time.Time
	accepted []string
}

func (r *receiver) Name() string { return "receiver" }

func (r *receiver) Send(ctx context.Context, event []byte) error {
	r.mu.Lock()
	r.attempts = append(r.attempts, time.Now())
	n := len(r.attempts)
	r.mu.Unlock()
	if r.answer != nil {
		if err := r.answer(ctx, n); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, after, _ := bytes.Cut(event, []byte(`"value":"`))
	value, _, _ := bytes.Cut(after, []byte(`"`))
	r.accepted = append(r.accepted, string(value))
	return nil
}

func (r *receiver) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.accepted, " ")
}

// pass lets time pass, of the clock of a bubble.
func pass(d time.Duration) { <-time.After(d) }

// running runs a sink with a receiver. end stops it, and returns how long that took.
func running(t *testing.T, to *receiver, opts Options) (s *Sink, log *bytes.Buffer, end func() time.Duration) {
	log = new(bytes.Buffer)
	opts.Values, opts.Logger = true, slog.New(slog.NewTextHandler(log, nil))
	opts.To = to
	s = newSink(opts)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	return s, log, func() time.Duration {
		begin := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return time.Since(begin)
	}
}

// put queues events from now.
func put(s *Sink, values ...string) {
	for _, v := range values {
		s.Send(Due{}, &Event{Time: time.Now(), Entries: []descriptor.Entry{{Key: "k", Value: v}}})
	}
}

func TestEventsAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &receiver{}
		s, log, end := running(t, to, Options{})
		put(s, "1", "2")
		synctest.Wait()
		put(s, "3")
		synctest.Wait()
		if got := to.got(); got != "1 2 3" || len(to.attempts) != 3 || s.sent[Denial].Load() != 3 {
			t.Errorf("%q in %d requests, %d counted; want 1 2 3, each in a request of its own", got, len(to.attempts), s.sent[Denial].Load())
		}
		if took := end(); took != 0 || log.Len() > 0 {
			t.Errorf("the stop took %s, log %q", took, log)
		}
	})
}

// The waits between attempts double from about one second to about thirty, and start again after an attempt that
// succeeds.
func TestWaitsBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &receiver{answer: func(_ context.Context, n int) error {
			if n <= 8 || n == 10 {
				return errors.New("out of order")
			}
			return nil
		}}
		s, log, end := running(t, to, Options{})
		put(s, "1")
		pass(4 * time.Minute)
		put(s, "2")
		pass(time.Second)
		synctest.Wait()
		if got := to.got(); got != "1 2" {
			t.Errorf("sent %q", got)
		}
		for i, longest := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30, 0, 1} {
			if longest *= time.Second; longest == 0 {
				continue
			}
			if wait := to.attempts[i+1].Sub(to.attempts[i]); wait < longest/2 || wait > longest {
				t.Errorf("wait %d is %s, want between %s and %s", i, wait, longest/2, longest)
			}
		}
		if n := strings.Count(log.String(), "events cannot be sent; they wait"); n != 2 || strings.Count(log.String(), "events are sent again") != 2 {
			t.Errorf("the log reports %d failures, want 2, each with its end:\n%s", n, log)
		}
		if n := s.failed.Load(); n != 9 {
			t.Errorf("%d failed attempts, want 9", n)
		}
		end()
	})
}

// A receiver that asks for a pause gets it, up to the age at which events are dropped.
func TestReceiverAsksForAPause(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{20 * time.Second: 20 * time.Second, time.Hour: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			to := &receiver{answer: func(_ context.Context, n int) error {
				if n == 1 {
					return &LaterError{errors.New("busy"), asked}
				}
				return nil
			}}
			s, _, end := running(t, to, Options{RetryFor: time.Minute})
			put(s, "1")
			pass(time.Hour)
			put(s, "2")
			synctest.Wait()
			if wait := to.attempts[1].Sub(to.attempts[0]); wait != want || to.got() != "1 2" {
				t.Errorf("asked for %s, it waited %s, and sent %q", asked, wait, to.got())
			}
			end()
		})
	}
}

// Events that are too old are dropped, newer ones wait on.
func TestOldEventsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		to := &receiver{answer: func(context.Context, int) error {
			if !works.Load() {
				return errors.New("out of order")
			}
			return nil
		}}
		s, _, end := running(t, to, Options{RetryFor: 5 * time.Minute})
		put(s, "1", "2", "3")
		pass(4 * time.Minute)
		put(s, "4", "5")
		pass(2 * time.Minute)
		if n := s.dropped[tooOld].Load(); n != 3 {
			t.Errorf("%d events dropped after 6 minutes, want 3", n)
		}
		works.Store(true)
		pass(longestWait)
		synctest.Wait()
		if got := to.got(); got != "4 5" {
			t.Errorf("sent %q, want 4 5", got)
		}
		end()
	})
}

// Events that the receiver rejects are dropped immediately, and this is logged once a minute.
func TestEventsThatAreNotAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &receiver{answer: func(_ context.Context, n int) error {
			if n != 3 {
				return &RejectedError{errors.New("what is this")}
			}
			return nil
		}}
		s, log, end := running(t, to, Options{})
		put(s, "1", "2", "3", "4")
		synctest.Wait()
		if got, n := to.got(), s.dropped[notAccepted].Load(); got != "3" || n != 3 || len(to.attempts) != 4 {
			t.Errorf("sent %q, %d dropped, %d attempts", got, n, len(to.attempts))
		}
		pass(time.Minute)
		put(s, "5")
		synctest.Wait()
		if n := strings.Count(log.String(), "does not accept"); n != 2 {
			t.Errorf("%d lines in the log, want 2:\n%s", n, log)
		}
		end()
	})
}

// A stop sends the queued events.
func TestStopSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &receiver{answer: func(context.Context, int) error {
			pass(300 * time.Millisecond)
			return nil
		}}
		s, log, end := running(t, to, Options{})
		put(s, "1", "2", "3")
		if took := end(); took != 900*time.Millisecond || to.got() != "1 2 3" || log.Len() > 0 {
			t.Errorf("after %s %q was sent; log %q", took, to.got(), log)
		}
	})
}

// A stop immediately makes one more attempt to send the event that waits for a retry, even if the receiver asked for a
// pause. Later pauses have their full length.
func TestStopEndsAWait(t *testing.T) {
	for failures, want := range map[int]string{1: "1 2", 2: ""} {
		synctest.Test(t, func(t *testing.T) {
			to := &receiver{answer: func(ctx context.Context, n int) error {
				if n <= failures {
					return &LaterError{errors.New("busy"), 20 * time.Second}
				}
				return ctx.Err()
			}}
			s, _, end := running(t, to, Options{StopWithin: 3 * time.Second})
			put(s, "1", "2")
			synctest.Wait()
			took, lost := end(), s.dropped[stopped].Load()
			if to.got() != want || len(to.attempts) < 2 || to.attempts[1].Sub(to.attempts[0]) != 0 || failures == 2 && to.attempts[2].Sub(to.attempts[1]) == 0 {
				t.Errorf("%d failures: sent %q in attempts at %v, want %q with the second attempt at once", failures, to.got(), to.attempts, want)
			}
			if failures == 1 && (took != 0 || lost != 0) || failures == 2 && (took < 3*time.Second || lost != 2) {
				t.Errorf("%d failures: the stop took %s, %d attempts, %d events lost", failures, took, len(to.attempts), lost)
			}
		})
	}
}

// A stop ends within its bound for every receiver, and reports how many events are lost.
func TestStopIsBounded(t *testing.T) {
	for name, answer := range map[string]func(context.Context, int) error{
		"it fails": func(context.Context, int) error { return errors.New("out of order") },
		"it hangs": func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"it hangs for good": func(context.Context, int) error {
			pass(time.Hour)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log, end := running(t, &receiver{answer: answer}, Options{StopWithin: 2 * time.Second})
				put(s, "1", "2", "3")
				synctest.Wait()
				took := end()
				if took < 2*time.Second || took > 2200*time.Millisecond || !strings.Contains(log.String(), "events were not sent before the service stopped\" events=3") || s.dropped[stopped].Load() != 3 {
					t.Errorf("%s, %d dropped, log %s", took, s.dropped[stopped].Load(), log)
				}
				pass(time.Hour) // lets the attempt end that nothing can interrupt
			})
		})
	}
}

// A decision never waits: Due and Send return while the receiver hangs and the queue is full.
func TestDecisionsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &receiver{answer: func(ctx context.Context, _ int) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		s, _, end := running(t, to, Options{Queue: 10, PerSecond: 1 << 40, StopWithin: time.Second})
		begin, due := time.Now(), 0
		for i := range 1000 {
			if offer(s, begin, fmt.Sprint(i)) {
				due++
			}
		}
		if took := time.Since(begin); took != 0 || s.queue.len() != 10 || due > 11 || s.dropped[noRoom].Load() != uint64(1000-due) {
			t.Errorf("%s, %d events waiting, %d due, %d dropped", took, s.queue.len(), due, s.dropped[noRoom].Load())
		}
		end()
	})
}
