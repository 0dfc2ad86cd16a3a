package regions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
)

// far is the store of another region. Each request becomes a query. Queries that arrive while all calls are pending
// share the next call.
type far struct {
	of      *Store
	region  string
	denials *overlimit.Cache // denial cache in front of this store; nil if it is disabled
	leases  *lease.Leases    // permits, in front of the denial cache

	questions *overlimit.Far // questions of the denial cache and of the leases

	replicas atomic.Int64 // State.Replicas of the last answer
	looking  atomic.Bool

	mu      sync.Mutex
	sums    map[uint64]uint64 // State.Sum of each replica of the region
	waiting []*inFlight
	bytes   int // length of the waiting queries' texts
	calls   int // pending calls
}

const (
	mostCalls   = 100             // pending calls to one region
	mostWaiting = 20 * MaxQueries // queries that wait for a call; more fail immediately
	mostBytes   = 16 << 20        // length of the waiting queries' texts
)

func newFar(s *Store, region string) *far {
	f := &far{of: s, region: region, sums: make(map[uint64]uint64)}
	f.questions = &overlimit.Far{Store: asker{f}, Askers: f.askers,
		Leased: func(key []byte) bool { return f.leases.Leased(key) }}
	behind := backend.Store(f)
	if s.opts.Denials > 0 {
		f.denials = overlimit.New(overlimit.Options{Store: f, Bytes: s.opts.Denials, Far: f.questions})
		behind = f.denials
	}
	f.leases = lease.New(lease.Options{
		Store: behind, Timeout: s.opts.Timeout,
		Far: &lease.Far{Store: asker{f}, MayAsk: f.questions.MayAsk, Denied: f.denied, Waited: f.waited},
	})
	return f
}

// denied adds a denial to the denial cache.
func (f *far) denied(t *backend.Take, o *backend.Outcome) {
	if f.denials != nil {
		f.denials.Learn(t, o)
	}
}

// askers returns the number of replicas that share the region's remaining hits.
func (f *far) askers() int { return int(max(f.replicas.Load(), 1)) }

// mostSums is the largest number of replicas of a region in far.sums.
const mostSums = 1000

// keeps reports whether this replica holds permits or denials that a change in the region would void.
func (f *far) keeps() bool { return f.leases.Len() > 0 || f.denials != nil && f.denials.Len() > 0 }

// hears applies the state in an answer of the region. After a change, the region's permits and denials are void.
func (f *far) hears(s State) {
	f.replicas.Store(int64(s.Replicas))
	f.leases.SetReplicas(s.Replicas)
	f.mu.Lock()
	was, known := f.sums[s.Replica]
	changed := was != s.Sum
	if !known {
		changed = len(f.sums) > 0
		for _, sum := range f.sums {
			changed = changed && sum != s.Sum
		}
		if len(f.sums) >= mostSums {
			clear(f.sums)
		}
	}
	f.sums[s.Replica] = s.Sum
	f.mu.Unlock()
	if !changed {
		return
	}
	f.leases.VoidAll()
	if f.denials != nil {
		f.denials.ForgetAll()
	}
}

// inFlight is a request whose query is waiting or sent.
type inFlight struct {
	far   *far
	query Query
	timer *time.Timer
	stop  func() bool // stops watching the caller's context
	size  int         // length of the query's texts

	asked bool // sent by this replica itself: no request waits for the answer

	mu      sync.Mutex
	request *backend.Request // nil once the request is answered
	done    func(error)
	// copies of the takes of a request that stopped waiting: its answer can still fill the denial cache
	late []backend.Take
}

// Start implements backend.Starter.
func (f *far) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	return f.start(ctx, now, r, false, done)
}

// asker sends this replica's own questions: no request waits for the answers.
type asker struct{ *far }

// Start implements backend.Starter.
func (a asker) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	return a.start(ctx, now, r, true, done)
}

func (f *far) start(ctx context.Context, now time.Time, r *backend.Request, asked bool,
	done func(error)) (settled bool, err error) {
	query, err := queryOf(now, r)
	if err != nil {
		backend.Fail(r.Outcomes)
		return true, err
	}
	return f.send(ctx, &inFlight{query: query, request: r, asked: asked, done: done})
}

// waited counts attempts that waited for permits.
func (f *far) waited(attempts int, answered bool) {
	f.of.counts.waited.Add(int64(attempts))
	if !answered {
		f.of.counts.unanswered.Add(int64(attempts))
	}
}

// newQuestion returns a question about one counter, for which no request waits. It calls answered with the outcome.
func newQuestion(f *far, q *Query, answered func(*backend.Outcome)) *inFlight {
	r := &backend.Request{Takes: []backend.Take{{Limit: new(descriptor.Limit)}}, Outcomes: make([]backend.Outcome, 1)}
	n := &inFlight{far: f, query: *q, request: r, size: q.size(), asked: true,
		done: func(error) { answered(&r.Outcomes[0]) }}
	n.mu.Lock() // leave, which stops the timer, must not run before both are set
	defer n.mu.Unlock()
	n.timer, n.stop = time.AfterFunc(callTimeout, func() { n.leave(errNoAnswer) }), func() bool { return true }
	return n
}

var errNoAnswer = errors.New("no answer")

// Peek implements backend.Store.
func (f *far) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	query, err := queryOf(now, r)
	if err != nil {
		backend.Fail(r.Outcomes)
		return err
	}
	query.Look = true
	ended := make(chan error, 1)
	if settled, err := f.send(ctx, &inFlight{query: query, request: r, done: func(err error) { ended <- err }}); settled {
		return err
	}
	return <-ended
}

// Reset implements backend.Store.
func (f *far) Reset(context.Context, []backend.Counter) error { return errResetThere(f.region) }

// send sends a query, with its request and done.
func (f *far) send(ctx context.Context, q *inFlight) (settled bool, err error) {
	if err := ctx.Err(); err != nil {
		backend.Fail(q.request.Outcomes)
		return true, f.leaves(ctx, true)
	}
	left, own := f.of.opts.Timeout, false
	if d, ok := ctx.Deadline(); ok {
		until := time.Until(d)
		if until -= backend.Margin(until, 0); until < left {
			left, own = until, true
		}
	}
	if !q.asked {
		f.of.counts.waited.Add(int64(len(q.request.Takes)))
	}
	q.far, q.size = f, q.query.size()
	q.mu.Lock() // leave, which stops the timer, must not run before both are set
	q.timer = time.AfterFunc(left, func() { q.leave(f.leaves(ctx, own)) })
	q.stop = context.AfterFunc(ctx, func() { q.leave(f.leaves(ctx, own)) })
	q.mu.Unlock()
	f.add(q)
	return false, nil
}

// leaves returns the error for a request that stops waiting. own means that its deadline has passed, not
// Options.Timeout.
func (f *far) leaves(ctx context.Context, own bool) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Canceled
	case own || ctx.Err() != nil:
		return fmt.Errorf("%w: the region %s, which counts this limit, has not answered: %w",
			backend.ErrUnavailable, f.region, context.DeadlineExceeded)
	default:
		return fmt.Errorf("%w: the region %s, which counts this limit, has not answered in time", backend.ErrUnavailable,
			f.region)
	}
}

// errOrigin is the error of takes without Origin under a limit that another region counts.
var errOrigin = fmt.Errorf("%w: another region cannot find a limit without the descriptor", backend.ErrUnavailable)

// errPenalty is the error of a take on a penalty whose counter is not part of the request.
var errPenalty = fmt.Errorf("%w: another region cannot find a penalty without its limit", backend.ErrUnavailable)

// queryOf turns a request into a query. It copies all texts, because the caller may reuse their memory.
func queryOf(now time.Time, r *backend.Request) (Query, error) {
	q := Query{Together: r.Together, PeekWhenKnown: r.PeekWhenKnown, Takes: make([]Take, 0, len(r.Takes))}
	last := -1
	for i := range r.Takes {
		t := &r.Takes[i]
		origin, l := t.Origin, t.Limit
		switch {
		case origin == nil:
			return q, errOrigin
		case t.Reservation != nil && !t.Settled:
			return q, fmt.Errorf("%w: reservations are kept in one region", backend.ErrUnavailable)
		case q.Domain == "":
			q.Domain = strings.Clone(origin.Domain)
		}
		if t.Member != last {
			last = t.Member
			q.Descriptors = append(q.Descriptors, descriptor.CloneEntries(origin.Entries))
		}
		k := Take{
			Descriptor: len(q.Descriptors) - 1, Hits: t.Hits, Vote: t.Vote, CountDenied: t.CountDenied, Guards: t.Guards,
			Settled: t.Settled, Commits: t.Settled && t.Reservation != nil,
		}
		if l.Algorithm == descriptor.Penalties {
			counter, word := descriptor.CutPenaltyKey(t.Key)
			of := slices.IndexFunc(r.Takes, func(o backend.Take) bool { return bytes.Equal(o.Key, counter) })
			if of < 0 {
				return q, errPenalty
			}
			l, k.Guards, k.Shadow = r.Takes[of].Limit, true, word == descriptor.ShadowPenaltyWord
		}
		k.Limit = t.Rule.Tag(l)
		if onClock(l) && t.Hits < 0 {
			_, k.Ends = l.Window.Bounds(now.UnixMicro())
		}
		q.Takes = append(q.Takes, k)
	}
	if len(q.Takes) > MaxTakes || len(q.Descriptors) > MaxTakes {
		return q, fmt.Errorf("%w: the request has %d limits that one other region counts: %d are the most",
			backend.ErrUnavailable, len(q.Takes), MaxTakes)
	}
	return q, nil
}

// onClock reports whether a limit's windows start on the clock. Such a limit forgets all hits at the end of each.
func onClock(l *descriptor.Limit) bool {
	return (l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.SharedWindow) && !l.FirstHit
}

// add sends a query as soon as a call is free.
func (f *far) add(q *inFlight) {
	f.mu.Lock()
	full := len(f.waiting) >= mostWaiting || f.bytes+q.size > mostBytes
	begin := !full && f.calls < mostCalls && f.of.begin()
	if full || !begin && f.calls == 0 {
		f.mu.Unlock()
		q.leave(fmt.Errorf("%w: too many requests wait for the region %s, or this replica stops", backend.ErrUnavailable,
			f.region))
		return
	}
	f.waiting, f.bytes = append(f.waiting, q), f.bytes+q.size
	if begin {
		f.calls++
	}
	f.mu.Unlock()
	if begin {
		go f.call()
	}
}

// call sends batches of queries until none is waiting.
func (f *far) call() {
	defer f.of.sending.Done()
	for {
		f.mu.Lock()
		var batch []*inFlight
		for len(batch) < MaxQueries && len(f.waiting) > 0 {
			q := f.waiting[0]
			if !q.hasLeft() {
				batch = append(batch, q)
			}
			f.bytes -= q.size
			f.waiting[0] = nil
			f.waiting = f.waiting[1:]
		}
		if len(batch) == 0 {
			f.calls--
			f.waiting = nil
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		f.ask(batch)
	}
}

// ask sends one batch.
func (f *far) ask(batch []*inFlight) {
	queries := make([]Query, len(batch))
	for i, q := range batch {
		queries[i] = q.query
	}
	err := f.exchange(f.of.stopping, queries, func(i int, a *Answer) {
		if i < len(batch) {
			batch[i].answer(a)
		}
	})
	if err == nil {
		err = errors.New("it has left out an answer")
	}
	//nolint:errorlint // the timeout of the call must not look like the deadline of a request
	err = fmt.Errorf("%w: ask the region %s: %v", backend.ErrUnavailable, f.region, err)
	for _, q := range batch {
		q.leave(err) // no effect on those that already have an answer
	}
}

// callTimeout bounds a call. No request waits longer for an answer.
const callTimeout = 2 * time.Second

// exchange makes one call, and applies the region's state.
func (f *far) exchange(ctx context.Context, queries []Query, answered func(int, *Answer)) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	p, sent := f.of.peers[f.region], time.Now()
	err := f.of.opts.Peers.Ask(ctx, f.region, queries, func(state State) {
		p.answers(time.Since(sent), state.Rules)
		f.hears(state)
	}, answered)
	p.ended(err)
	return err
}

// look asks for the region's state, unless such a question is pending.
func (f *far) look() {
	if !f.looking.CompareAndSwap(false, true) {
		return
	}
	if !f.of.begin() {
		return
	}
	go func() {
		defer f.of.sending.Done()
		defer f.looking.Store(false)
		_ = f.exchange(f.of.stopping, nil, func(int, *Answer) {}) // Status shows the error
	}()
}

func (q *inFlight) hasLeft() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.request == nil
}

// leave ends the wait without an answer.
func (q *inFlight) leave(err error) {
	q.mu.Lock()
	r, done := q.request, q.done
	if r == nil {
		q.mu.Unlock()
		return
	}
	q.request, q.done = nil, nil
	for i := 0; i < len(r.Takes) && !q.asked; i++ { // the request's memory must not be used after done
		t, limit := r.Takes[i], *r.Takes[i].Limit
		t.Key, t.Limit, t.Origin, t.Reservation = append([]byte(nil), t.Key...), &limit, nil, nil
		q.late = append(q.late, t)
	}
	q.end()
	q.mu.Unlock()
	q.far.of.counts.unanswered.Add(int64(len(q.late)))
	backend.Fail(r.Outcomes)
	done(err)
}

// end stops the timer and the watch over the context.
func (q *inFlight) end() {
	q.timer.Stop()
	q.stop()
}

// answer hands the answer to the request. It does nothing if the request already has one.
func (q *inFlight) answer(a *Answer) {
	f := q.far
	if a.Home != "" {
		f.otherHome(a.Home, &q.query)
	}
	if a.Rejected != NotRejected {
		f.of.peers[f.region].rejects(a.Rejected, &q.query)
	}
	q.mu.Lock()
	r, done, late := q.request, q.done, q.late
	q.request, q.done = nil, nil
	if r == nil {
		q.mu.Unlock()
		for i := range late {
			if o := a.outcome(i, &late[i]); !o.Failed && f.denials != nil {
				f.denials.Learn(&late[i], &o)
			}
		}
		return
	}
	q.end()
	q.mu.Unlock()
	var err error
	for i := range r.Takes {
		if h := r.Takes[i].Reservation; h != nil { // these hits have already passed, so nothing was reserved
			h.Result = backend.ReservationUnknown
		}
		if r.Outcomes[i] = a.outcome(i, &r.Takes[i]); r.Outcomes[i].Failed {
			err = fmt.Errorf("%w: the region %s does not count this limit: %s", backend.ErrUnavailable, f.region, a.Rejected)
		}
	}
	done(err)
}

// outcome returns the outcome of a take. If the region counted under other numbers, it carries the region's limit.
func (a *Answer) outcome(i int, t *backend.Take) backend.Outcome {
	if i >= len(a.Outcomes) {
		return backend.Outcome{Failed: true}
	}
	o := a.Outcomes[i]
	if i < len(a.Limits) && a.Limits[i] != nil && !t.Guards {
		if n, l := a.Limits[i], t.Limit; !sameNumbers(n, l) {
			there := *l
			there.Requests, there.Burst, there.Algorithm = n.Requests, n.Burst, n.Algorithm
			if n.Window.Unit != l.Window.Unit || max(n.Window.Multiplier, 1) != max(l.Window.Multiplier, 1) {
				there.Window = descriptor.Window{Unit: n.Window.Unit, Multiplier: n.Window.Multiplier}
			}
			o.Limit = &there
		}
	}
	return o
}

func sameNumbers(a, b *descriptor.Limit) bool {
	return a.Requests == b.Requests && a.Burst == b.Burst && a.Algorithm == b.Algorithm &&
		a.Window.Unit == b.Window.Unit &&
		max(a.Window.Multiplier, 1) == max(b.Window.Multiplier, 1)
}

// otherHome logs that the region counted a limit whose home is another region by its own rules.
func (f *far) otherHome(home string, q *Query) {
	if f.of.strange.first("theirs|" + f.region + "|" + home + "|" + q.Domain) {
		f.of.opts.Logger.Warn("a region counts limits whose home is another region by its own rules: deploy the same rules "+
			"in all regions",
			"region", f.region, "home_there", home, "domain", q.Domain)
	}
}
