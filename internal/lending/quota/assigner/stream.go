package assigner

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// Usage is a client's report on one bucket. The assigner does not keep it.
type Usage struct {
	ID      []descriptor.Entry // the pairs of the bucket's id, sorted by key
	Elapsed time.Duration      // time since its previous report, as the client measured it
	Allowed uint64
	Denied  uint64
}

// Action is a message to a client about a bucket.
type Action struct {
	ID         []descriptor.Entry
	Abandon    bool // the client must forget the bucket; otherwise Assignment applies
	Assignment quota.Assignment
}

// Stream is the stream of one client.
type Stream struct {
	a      *Assigner
	client string
	ready  chan struct{} // has a capacity of 1

	// Guarded by the assigner's lock.
	opened        time.Time
	domain        string
	subscriptions map[string]*subscription // keyed by id
	queue         []*subscription          // actions to send
	unkept        []Action                 // actions for buckets that are not kept
	sending       int                      // bytes of actions being written
	bytes         int                      // bytes of its subscriptions, their buckets and its actions
	writing       []written                // result of the last Next
	key           []byte                   // scratch
	unknown       []int                    // scratch: indexes of usages of buckets without a subscription
	swept         time.Time                // when it was last told to forget buckets without a rule
	full          bool                     // its first message had several buckets, so the client was connected before
	closed        bool
}

// written is an action that is being written.
type written struct {
	s    *subscription
	told quota.Assignment
}

const (
	// most and mostBytes limit the actions that Next returns, and thus the cost of a client that does not read.
	most, mostBytes = 500, 64 << 10

	// reportedAtOnce is the number of usages applied before other streams have their turn.
	reportedAtOnce = 1000
)

// Open returns a stream for the client with this address.
func (a *Assigner) Open(client string) *Stream {
	s := &Stream{a: a, client: client, ready: make(chan struct{}, 1), opened: time.Now(),
		subscriptions: make(map[string]*subscription)}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams[s] = struct{}{}
	return s
}

// Report applies a client's report. The first report of a bucket subscribes to it. The first report of the stream sets
// its domain.
func (s *Stream) Report(now time.Time, domain string, all []Usage) {
	sweep := false
	if s.swept.IsZero() {
		s.swept = now
	} else if now.Sub(s.swept) >= s.a.o.Idle {
		s.swept, sweep = now, true
	}
	for first, full := true, len(all) > 1; first || len(all) > 0; first = false {
		n := min(len(all), reportedAtOnce)
		s.reportSome(now, domain, all[:n], full)
		s.reportNew(now, domain, all[:n], sweep)
		all = all[n:]
	}
}

// reportSome applies a part of a message, so that other streams need not wait for a large one.
func (s *Stream) reportSome(now time.Time, domain string, some []Usage, full bool) {
	a := s.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.closed {
		return
	}
	if s.domain == "" {
		s.domain = strings.Clone(domain)
		s.full = full
	}
	defer s.trim()
	s.unknown = s.unknown[:0]
	for i := range some {
		if !s.report(now, &some[i]) {
			s.unknown = append(s.unknown, i)
		}
	}
	a.metrics.allowed.Add(sum(some, func(u *Usage) uint64 { return u.Allowed }))
	a.metrics.denied.Add(sum(some, func(u *Usage) uint64 { return u.Denied }))
}

func sum(all []Usage, of func(*Usage) uint64) (n float64) {
	for i := range all {
		n += float64(of(&all[i]))
	}
	return n
}

// report applies one usage, unless the client is not subscribed to its bucket.
func (s *Stream) report(now time.Time, u *Usage) bool {
	s.key = appendID(s.key[:0], u.ID)
	sub := s.subscriptions[string(s.key)]
	if sub != nil && sub.state != active {
		if u.Allowed == 0 && u.Denied == 0 {
			return true // sent before the client was told to forget the bucket
		}
		s.drop(now, sub)
		sub = nil
	}
	if sub == nil {
		return false
	}
	s.use(now, sub, u)
	return true
}

// use counts the requests of a bucket to which the client is subscribed.
func (s *Stream) use(now time.Time, sub *subscription, u *Usage) {
	if sub.member == nil {
		sub.allowed += min(u.Allowed, 1<<32)
		sub.denied += min(u.Denied, 1<<32)
		if sub.deferred && sub.bucket.pool != nil {
			s.a.enter(now, sub)
		}
		return
	}
	allowed := sub.plausible(now, u.Allowed)
	p := sub.bucket.pool
	plan := p.planner.Report(now, sub.member, allowed, u.Denied)
	if allowed > 0 {
		sub.bucket.addCharge(allowed)
	}
	if plan || allowed > 0 || u.Denied > 0 {
		s.a.planSoon(now, p)
	}
}

// subscribe adds a subscription. It returns nil if there is no room for it.
func (s *Stream) subscribe(now time.Time, u *Usage) *subscription {
	a := s.a
	if len(s.subscriptions) >= a.o.MaxPerStream {
		a.metrics.rejected.WithLabelValues("stream").Inc()
		return nil
	}
	if a.subscriptions >= a.o.MaxSubscriptions && !a.makeRoom(now, len(s.subscriptions)) {
		a.metrics.rejected.WithLabelValues("all").Inc()
		return nil
	}
	s.key = appendID(append(s.key[:0], s.domain...), u.ID)
	b := a.buckets[string(s.key)]
	if b == nil && len(a.buckets) >= a.o.MaxBuckets {
		a.metrics.rejected.WithLabelValues("buckets").Inc()
		return nil
	}
	more := bytesOfSubscription
	if b == nil {
		more += bytesOfBucket + bytesOfPool + len(s.key) + min(len(s.key), longKey) + bytesOfEntry*len(u.ID)
	}
	if !s.hasRoom(more) {
		return nil
	}
	if b == nil {
		a.serial++
		b = &bucket{key: string(s.key), serial: a.serial, domain: s.domain, reserved: bytesOfPool + min(len(s.key), longKey)}
		b.id = entriesOf(b.key[len(s.domain):], len(u.ID))
		a.keep(b.bytes() + b.reserved)
		a.buckets[b.key] = b
		a.resolve(b)
		a.rouse()
	}
	sub := &subscription{stream: s, bucket: b, place: len(b.subscriptions), since: now}
	b.subscriptions = append(b.subscriptions, sub)
	s.subscriptions[b.key[len(s.domain):]] = sub
	s.bytes += b.bytes()
	s.keep(bytesOfSubscription)
	a.subscriptions++
	if b.pool != nil {
		a.readmit(now, b)
	}
	return sub
}

// appendID appends an encoding that is different for different ids.
func appendID(b []byte, id []descriptor.Entry) []byte {
	for _, e := range id {
		b = append(b, 0)
		b = appendText(b, e.Key)
		b = appendText(b, e.Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	for n := len(s); ; n >>= 7 {
		if n < 0x80 {
			b = append(b, byte(n))
			break
		}
		b = append(b, byte(n)|0x80)
	}
	return append(b, s...)
}

// makeRoom ends a subscription of the stream with the most subscriptions, unless the stream that asks has as many.
func (a *Assigner) makeRoom(now time.Time, has int) bool {
	var largest *Stream
	for s := range a.streams {
		if largest == nil || len(s.subscriptions) > len(largest.subscriptions) {
			largest = s
		}
	}
	if largest == nil || len(largest.subscriptions) <= has+1 {
		return false
	}
	for _, sub := range largest.subscriptions {
		largest.drop(now, sub)
		a.metrics.rejected.WithLabelValues("displaced").Inc()
		return true
	}
	return false
}

// drop ends a subscription. The client's assignment counts until it expires.
func (s *Stream) drop(now time.Time, sub *subscription) {
	b := sub.bucket
	delete(s.subscriptions, b.key[len(s.domain):])
	s.bytes -= b.bytes()
	s.keep(-bytesOfSubscription)
	s.a.subscriptions--
	last := len(b.subscriptions) - 1
	b.subscriptions[sub.place] = b.subscriptions[last]
	b.subscriptions[sub.place].place = sub.place
	b.subscriptions[last] = nil
	b.subscriptions = b.subscriptions[:last]
	if sub.member != nil {
		if sub.state == forgotten {
			b.pool.planner.Forget(now, sub.member)
		} else {
			b.pool.planner.Leave(now, sub.member)
		}
		sub.member = nil
		s.a.planSoon(now, b.pool)
	}
	switch {
	case len(b.subscriptions) > 0:
	case b.pool != nil:
		b.pool.dismiss(b)
	default:
		s.a.removeBucket(b)
	}
	sub.state = forgotten
}

// enqueue queues the action of a subscription.
func (s *Stream) enqueue(sub *subscription) {
	if sub.queued || s.closed {
		return
	}
	if len(s.queue) >= 2*len(s.subscriptions)+most { // ended ones accumulate if a client does not read
		s.queue = slices.DeleteFunc(s.queue, func(sub *subscription) bool { return sub.state == forgotten })
	}
	sub.queued = true
	s.queue = append(s.queue, sub)
	s.rouse()
}

func (s *Stream) rouse() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next waits for actions, and appends at most 500 of them to all. Its error is that of ctx.
func (s *Stream) Next(ctx context.Context, all []Action) ([]Action, error) {
	for {
		s.a.mu.Lock()
		all = s.take(all)
		s.a.mu.Unlock()
		if len(all) > 0 {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return all, ctx.Err()
		case <-s.ready:
		}
	}
}

// take appends actions from the queue.
func (s *Stream) take(all []Action) []Action {
	s.writing = s.writing[:0]
	all, size := s.takeUnkept(all)
	unkept := size
	for len(s.queue) > 0 && len(all) < most && size < mostBytes {
		sub := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		sub.queued = false
		size += bytesOfAction + len(sub.bucket.key)
		switch {
		case sub.state == abandoning:
			all = append(all, Action{ID: sub.bucket.id, Abandon: true})
			s.writing = append(s.writing, written{s: sub})
		case sub.state == active && sub.member != nil && sub.member.Held.Kind != quota.None:
			all = append(all, Action{ID: sub.bucket.id, Assignment: sub.member.Held})
			s.writing = append(s.writing, written{sub, sub.member.Held})
		}
	}
	s.keep(size - unkept)
	s.sending += size - unkept
	return all
}

// Sent records that the result of the last Next has been written. The lifetime of these assignments starts now or
// earlier.
func (s *Stream) Sent(now time.Time) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.sent(now)
}

func (s *Stream) sent(now time.Time) {
	s.keep(-s.sending)
	s.sending = 0
	for _, w := range s.writing {
		sub := w.s
		switch {
		case sub.state == abandoning:
			sub.state, sub.abandoned = forgotten, now
			if sub.member != nil {
				sub.bucket.pool.planner.Forget(now, sub.member)
				sub.member = nil
			}
			if p, at := sub.bucket.pool, now.Add(settled); p != nil && at.Before(p.due) {
				s.a.due.set(p, at)
			}
		case sub.member != nil && sub.member.Held == w.told:
			sub.member.Sent(now)
			if at := now.Add(w.told.TTL / 2); at.Before(sub.bucket.pool.due) {
				s.a.due.set(sub.bucket.pool, at)
			}
		}
	}
	clear(s.writing)
	s.writing = s.writing[:0]
}

// Close ends the subscriptions of the stream.
func (s *Stream) Close(now time.Time) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	if s.closed {
		return
	}
	s.sent(now) // some of the actions may have been written
	s.closed, s.queue, s.key = true, nil, nil
	s.dropUnkept()
	for _, sub := range s.subscriptions {
		s.drop(now, sub)
	}
	delete(s.a.streams, s)
}
