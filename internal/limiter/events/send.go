package events

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Destination accepts encoded events, one at a time. Package destination has those that operators can choose.
type Destination interface {
	// Send sends an encoded event. It returns when it is accepted or the attempt has failed.
	Send(ctx context.Context, event []byte) error

	// Name is the destination in the log. It has no secret.
	Name() string
}

// RejectedError means that the destination does not accept this event, whenever it is sent.
type RejectedError struct{ Err error }

func (e *RejectedError) Error() string { return e.Err.Error() }

func (e *RejectedError) Unwrap() error { return e.Err }

// LaterError is a failure after which the destination wants no attempt for a while.
type LaterError struct {
	Err   error
	After time.Duration
}

func (e *LaterError) Error() string { return e.Err.Error() }

func (e *LaterError) Unwrap() error { return e.Err }

// Waits between attempts. A wait is random, between half of it and all of it, so that replicas do not all retry at
// once.
const (
	firstWait   = time.Second
	longestWait = 30 * time.Second
)

// Run sends events until ctx ends, and then the queued ones, within a bound. It returns nil.
func (s *Sink) Run(ctx context.Context) error {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.send(sending, ctx.Done())
	}()
	<-ctx.Done()
	bound := time.NewTimer(s.opts.StopWithin)
	defer bound.Stop()
	select {
	case <-done:
	case <-bound.C:
		cancel()
		select {
		case <-done:
		case <-time.After(100 * time.Millisecond): // a write to a pipe hangs, which nothing can end
		}
	}
	n := s.queue.len()
	if s.inHand.Load() {
		n++
	}
	if n > 0 {
		s.dropped[stopped].Add(uint64(n))
		s.opts.Logger.Warn("events were not sent before the service stopped", "events", n, "to", s.opts.To.Name())
	}
	return nil
}

// send sends events until ctx ends, or until stop is closed and none is left.
func (s *Sink) send(ctx context.Context, stop <-chan struct{}) {
	s.hurry = stop
	for ctx.Err() == nil {
		if e := s.queue.pop(); e != nil {
			s.inHand.Store(true)
			if s.deliver(ctx, e) {
				s.inHand.Store(false)
			}
			continue
		}
		select {
		case <-s.queue.wake:
			continue
		default:
		}
		select {
		case <-s.queue.wake:
		case <-stop:
			if s.queue.len() == 0 {
				return
			}
		}
	}
}

// deliver tries to send an event until it is accepted or dropped. It returns false if ctx ends before.
func (s *Sink) deliver(ctx context.Context, e *Event) bool {
	encoded := s.encode(e)
	for {
		attempt, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		err := s.opts.To.Send(attempt, encoded)
		cancel()
		if err == nil {
			s.accepted(e)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.failed.Add(1)
		if rejected, ok := errors.AsType[*RejectedError](err); ok {
			s.reject(rejected)
			return true
		}
		s.fail(err)
		s.pause(ctx, err)
		oldest := time.Now().Add(-s.opts.RetryFor)
		s.dropped[tooOld].Add(uint64(s.queue.expire(oldest)))
		if e.Time.Before(oldest) {
			s.dropped[tooOld].Add(1)
			return true
		}
	}
}

func (s *Sink) accepted(e *Event) {
	s.wait = 0
	s.sent[e.due.kind].Add(1)
	if s.failing {
		s.opts.Logger.Info("events are sent again", "to", s.opts.To.Name())
	}
	s.failing = false
}

// reject drops an event that the destination does not accept.
func (s *Sink) reject(err error) {
	s.wait, s.failing = 0, false // it answers
	s.dropped[notAccepted].Add(1)
	if now := time.Now(); s.rejected.IsZero() || now.Sub(s.rejected) >= time.Minute {
		s.rejected = now
		s.opts.Logger.Warn("the webhook does not accept events, which are dropped", "to", s.opts.To.Name(), "error", err)
	}
}

// fail logs a failure, unless the attempt before failed too.
func (s *Sink) fail(err error) {
	if !s.failing {
		s.opts.Logger.Warn("events cannot be sent; they wait", "to", s.opts.To.Name(), "error", err, "dropped_at_age",
			s.opts.RetryFor)
	}
	s.failing = true
}

// pause waits before the next attempt, which may be one with other events. A stop ends the first wait: there may be no
// time for another one.
func (s *Sink) pause(ctx context.Context, err error) {
	s.wait = min(max(2*s.wait, firstWait), longestWait)
	wait := s.wait/2 + rand.N(s.wait/2+1)
	if later, ok := errors.AsType[*LaterError](err); ok {
		wait = max(wait, min(later.After, s.opts.RetryFor))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.hurry:
		s.hurry = nil
	case <-ctx.Done():
	}
}
