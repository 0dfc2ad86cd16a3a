package regions

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// asker sends questions to one home. Questions that come while calls are on their way are gathered.
type asker struct {
	of     *Store
	region string // whose replicas answer

	down  atomic.Bool // the last call failed
	heard atomic.Pointer[homeRules]

	mu      sync.Mutex
	waiting []*question
	calls   int
}

// question is one question, and what is done with its answer.
type question struct {
	query Query
	done  func(*Reply, error) // called once; must not take long
	gone  atomic.Bool         // its caller has stopped waiting
}

const (
	mostCalls   = 4               // on their way to one home
	mostWaiting = 20 * MaxQueries // questions that wait for a call; more fail at once
	callTimeout = 2 * time.Second

	// lasting is how long the home's rules are taken to be those of an answer, from when its question was sent. They are asked for every tick. If
	// that fails, each account asks for itself.
	lasting = 1_500_000
)

// homeRules is what an answer has said about the home's rules: region.Answer.Rules.
type homeRules struct {
	rules uint64
	sent  int64 // the question, by clocks.elapsed
}

// rules returns what is known of the home's rules, or 0.
func (a *asker) rules() uint64 {
	if h := a.heard.Load(); h != nil && a.of.clocks.elapsed() < h.sent+lasting {
		return h.rules
	}
	return 0
}

// hear takes in the rules by which a call was answered that was sent then.
func (a *asker) hear(replies []Reply, sent int64) {
	for i := range replies {
		if p := replies[i].Permits; p != nil {
			if h := a.heard.Load(); h == nil || sent >= h.sent {
				a.heard.Store(&homeRules{p.Rules, sent})
			}
			return
		}
	}
}

func newAsker(s *Store, home string) *asker { return &asker{of: s, region: home} }

// add sends a question as soon as a call is free.
func (a *asker) add(q *question) {
	a.mu.Lock()
	full := len(a.waiting) >= mostWaiting
	begin := !full && a.calls < mostCalls && a.of.begin()
	if full || !begin && a.calls == 0 {
		a.mu.Unlock()
		q.done(nil, fmt.Errorf("%w: too many questions wait for the region %s, or this replica stops", backend.ErrUnavailable, a.region))
		return
	}
	a.waiting = append(a.waiting, q)
	if begin {
		a.calls++
	}
	a.mu.Unlock()
	if begin {
		go a.send()
	}
}

// send makes calls until nothing waits.
func (a *asker) send() {
	defer a.of.sending.Done()
	for {
		a.mu.Lock()
		var batch []*question
		for len(batch) < MaxQueries && len(a.waiting) > 0 {
			if q := a.waiting[0]; !q.gone.Load() {
				batch = append(batch, q)
			}
			a.waiting[0] = nil
			a.waiting = a.waiting[1:]
		}
		if len(batch) == 0 {
			a.calls--
			a.waiting = nil
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		a.exchange(batch)
	}
}

func (a *asker) exchange(batch []*question) {
	queries := make([]Query, len(batch))
	for i, q := range batch {
		queries[i] = q.query
	}
	sent := a.of.clocks.elapsed()
	ctx, cancel := context.WithTimeout(a.of.stopping, callTimeout)
	replies, err := a.of.opts.Peers.Exchange(ctx, a.region, a.of.opts.Epoch, queries)
	cancel()
	if err == nil && len(replies) != len(queries) {
		err = fmt.Errorf("%d answers to %d questions", len(replies), len(queries))
	}
	a.of.counts.asked.Add(int64(len(batch)))
	if err != nil {
		err = fmt.Errorf("%w: ask the region %s: %v", backend.ErrUnavailable, a.region, err) //nolint:errorlint // the call's timeout must not look like the caller's
		a.of.counts.failed.Add(1)
	}
	a.of.peers[a.region].heard(err)
	a.down.Store(err != nil)
	a.hear(replies, sent)
	for i, q := range batch {
		if err != nil {
			q.done(nil, err)
		} else {
			if replies[i].Refused != NotRefused {
				a.of.peers[a.region].refuses(replies[i].Refused, &q.query)
			}
			q.done(&replies[i], nil)
		}
	}
}

// takeFar asks the home for one take.
func (s *Store) takeFar(w *wait, home string, t *backend.Take, o *backend.Outcome) error {
	query := queryOf(t)
	query.Hits = t.Hits
	done := make(chan struct{})
	var reply *Reply
	var err error
	q := &question{query: query, done: func(t *Reply, e error) {
		reply, err = t, e
		close(done)
	}}
	s.askers[home].add(q)
	if late := w.until(done, nil); late != nil {
		q.gone.Store(true)
		s.counts.starved.Add(1)
		return late
	}
	switch {
	case err != nil:
	case reply.Outcome == nil:
		err = fmt.Errorf("%w: the region %s does not count this limit: %s", backend.ErrUnavailable, home, reply.Refused)
	default:
		*o = *reply.Outcome
		return nil
	}
	s.counts.starved.Add(1)
	return err
}
