package events

import (
	"crypto/sha256"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Sink.
type Options struct {
	To Destination // required

	Values bool // events include the values of entries, which come from requests

	PerSecond int64         // most events per second; default 100
	Interval  time.Duration // shortest period of a counter; default 1 minute
	Queue     int           // most events that wait; default 10,000

	Timeout    time.Duration // timeout of one request; default 10 s
	RetryFor   time.Duration // an event that cannot be sent is dropped at this age; default 5 minutes
	StopWithin time.Duration // how long Run may continue after its context has ended; default 1 s

	Metrics metric.Registry // if nil, metrics are counted but not registered
	Logger  *slog.Logger    // default slog.Default()
}

func (o *Options) setDefaults() {
	if o.PerSecond <= 0 {
		o.PerSecond = 100
	}
	if o.Interval <= 0 {
		o.Interval = time.Minute
	}
	if o.Queue <= 0 {
		o.Queue = 10_000
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.RetryFor <= 0 {
		o.RetryFor = 5 * time.Minute
	}
	if o.StopWithin <= 0 {
		o.StopWithin = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Sink takes events from decisions and sends them.
type Sink struct {
	opts   Options
	recent recent
	rate   logging.Sampler
	queue  queue

	failing  bool            // whether the last attempt failed
	wait     time.Duration   // pause before the next attempt; 0 if the last one succeeded
	rejected time.Time       // when it was last logged that the destination rejects events
	hurry    <-chan struct{} // closed to end the next pause immediately; nil after that
	inHand   atomic.Bool     // whether an event is taken from the queue, and neither sent nor dropped yet

	sent    [kinds]atomic.Uint64
	dropped [reasons]atomic.Uint64
	failed  atomic.Uint64 // attempts
}

// Why an event is dropped.
const (
	overRate = iota
	noRoom
	tooOld
	notAccepted
	stopped
	reasons
)

var reasonNames = [reasons]string{"rate", "queue", "age", "rejected", "stop"}

// New returns a Sink.
func New(opts Options) *Sink {
	opts.setDefaults()
	s := &Sink{
		opts:   opts,
		recent: recent{seed: maphash.MakeSeed()},
		rate:   logging.Sampler{PerSecond: opts.PerSecond},
		queue:  queue{max: opts.Queue, wake: make(chan struct{}, 1)},
	}
	metric.Register(opts.Metrics,
		metric.Counters("ratelimitd_events_sent_total",
			"Events that the webhook or file accepted.", "type", kindNames[:],
			s.sent[:]),
		metric.Counters("ratelimitd_events_dropped_total",
			"Events not sent.", "reason", reasonNames[:], s.dropped[:]),
		metric.Counter("ratelimitd_events_failed_attempts_total", "Failed attempts to send events.", s.failed.Load),
		metric.Gauge("ratelimitd_events_waiting", "Events waiting to be sent.", s.queue.len))
	return s
}

// Due reports whether an event about the counter with this key is due, and records it as sent: the caller must then
// call Send. ends is the time from now until the window of the counter, or the penalty, ends. Due keeps neither the key
// nor the limit.
func (s *Sink) Due(now time.Time, kind Kind, key []byte, limit *descriptor.Limit,
	ends time.Duration) (due Due, ok bool) {
	return s.due(now, kind, key, limit, ends, ofLimit{})
}

// DueFor is Due for a counter that several limits use, or one limit with several numbers: each gets separate events.
func (s *Sink) DueFor(now time.Time, kind Kind, key []byte, limit *descriptor.Limit,
	ends time.Duration) (due Due, ok bool) {
	return s.due(now, kind, key, limit, ends, ofLimit{limit.Name, limit.Requests, limit.Burst, limit.Classes.Class})
}

func (s *Sink) due(now time.Time, kind Kind, key []byte, limit *descriptor.Limit, ends time.Duration,
	of ofLimit) (due Due, ok bool) {
	micros := now.UnixMicro()
	if kind == Penalty { // only one replica sees a penalty start, and only once: no need to record it
		if due, ok = s.admit(now, kind, key, of); ok {
			due.start, due.end = micros, micros+ends.Microseconds()
		}
		return due, ok
	}
	sh, hash := s.recent.lock(kind, key, of)
	defer sh.mu.Unlock()
	if micros < sh.until[hash] {
		return Due{}, false
	}
	if due, ok = s.admit(now, kind, key, of); !ok {
		return Due{}, false
	}
	due.start, due.end = period(limit, micros, micros+ends.Microseconds(), s.opts.Interval)
	until := due.end
	if until <= micros { // the store's clock says the window is not over
		until = micros + ends.Microseconds()
	}
	sh.add(hash, until, micros)
	return due, true
}

// admit reports whether the bounds allow one more event.
func (s *Sink) admit(now time.Time, kind Kind, key []byte, of ofLimit) (due Due, ok bool) {
	switch {
	case s.queue.len() >= s.queue.max:
		s.dropped[noRoom].Add(1)
		return Due{}, false
	case !s.rate.Pick(now):
		s.dropped[overRate].Add(1)
		return Due{}, false
	}
	return Due{kind: kind, counter: sha256.Sum256(key), of: of}, true
}

// Send puts an event that is due into the queue. The event and its text belong to the sink from then on.
func (s *Sink) Send(due Due, e *Event) {
	e.due = due
	if size(e) > MaxEntryBytes {
		e.Entries = nil
	}
	if !s.queue.push(e) {
		s.dropped[noRoom].Add(1)
	}
}

func size(e *Event) (n int) {
	for i := range e.Entries {
		n += EntryBytes(e.Entries[i].Key, e.Entries[i].Value)
	}
	return n
}
