package backend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Split settles a request whose counters live in several places that cannot be changed as one: slots of a cluster, or
// two Redis servers. place returns where the counter of a take lives; take settles a request whose counters all live in
// one place.
//
// Takes that have to be settled together, but live in several places, are reserved in all these places concurrently. If
// one place denies, all reserved hits are given back. So Split never allows too much. Other requests cannot use
// reserved hits until these are given back. A replica that dies in between leaks at most the hits of one request.
//
// Hits that are only reserved, and given back soon, must not start a penalty for another request. So the places of a
// group that have a penalty are asked after all others, one by one. If a place denies, the later ones only read.
//
// gaveBack is called after reserved hits were given back, with the take that did it and its outcome: another request
// may have been denied because of these hits. It may be nil.
func Split[P comparable](ctx context.Context, r *Request, place func(*Take) P,
	take func(context.Context, P, *Request) error, gaveBack func(*Take, *Outcome)) error {
	if len(r.Takes) == 0 {
		return nil
	}
	if at := place(&r.Takes[0]); alone(r.Takes[1:], at, place) {
		return take(ctx, at, r)
	}
	s := splitting[P]{whole: r, place: place, take: take, gaveBack: gaveBack}
	var spread []*spreadGroup[P]
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		if at := place(&r.Takes[start]); alone(r.Takes[start+1:end], at, place) {
			s.send(s.batch(at, end-start > 1), start, end)
		} else {
			spread = append(spread, s.reserve(start, end))
		}
		start = end
	}
	sent := time.Now()
	err := s.run(ctx)
	for s.next(spread) {
		err = errors.Join(err, s.run(ctx))
	}
	for _, g := range spread {
		err = errors.Join(err, s.conclude(ctx, sent, g.start, g.end))
	}
	return err
}

// alone reports whether the counters of all these takes live in one place.
func alone[P comparable](takes []Take, at P, place func(*Take) P) bool {
	for i := range takes {
		if place(&takes[i]) != at {
			return false
		}
	}
	return true
}

// splitting is a request that is being sent to several places.
type splitting[P comparable] struct {
	whole    *Request
	place    func(*Take) P
	take     func(context.Context, P, *Request) error
	gaveBack func(*Take, *Outcome)
	batches  []*batch[P]
}

// batch holds the takes that go to one place in one call.
type batch[P comparable] struct {
	SubRequest
	place P
}

// batch returns a batch for takes that go to a place. Takes that are settled one by one share a batch; takes that are
// settled together get a separate batch.
func (s *splitting[P]) batch(place P, together bool) *batch[P] {
	if !together {
		for _, b := range s.batches {
			if b.place == place && !b.Together {
				return b
			}
		}
	}
	b := &batch[P]{place: place}
	b.Together = together
	s.batches = append(s.batches, b)
	return b
}

// send puts the takes from start to end into a batch.
func (s *splitting[P]) send(b *batch[P], start, end int) {
	for i := start; i < end; i++ {
		t := b.Add(i, s.whole.Takes[i])
		if b.Together && t.Vote == VoteAny {
			t.Vote = VoteNone // whether all members that vote Any were denied is known only when all places have answered
		}
	}
}

// spreadGroup is a group whose takes live in several places.
type spreadGroup[P comparable] struct {
	start, end int         // its takes are at [start, end) of the whole request
	asked      []*batch[P] // sent batches
	later      []*batch[P] // batches to be sent one by one, because they have penalties
}

// reserve puts the takes of one group into one batch for each of their places.
func (s *splitting[P]) reserve(start, end int) *spreadGroup[P] {
	g := &spreadGroup[P]{start: start, end: end}
	batches := make(map[P]*batch[P])
	for i := start; i < end; i++ {
		if at := s.place(&s.whole.Takes[i]); s.whole.Takes[i].Guards && batches[at] == nil {
			b := &batch[P]{place: at}
			b.Together = true
			batches[at], g.later = b, append(g.later, b)
		}
	}
	for i := start; i < end; i++ {
		at := s.place(&s.whole.Takes[i])
		if batches[at] == nil {
			batches[at] = s.batch(at, true)
			g.asked = append(g.asked, batches[at])
		}
		s.send(batches[at], i, i+1)
	}
	return g
}

// next chooses the batches that are sent now that earlier ones have been answered: the next one of each group. It
// returns false without any.
func (s *splitting[P]) next(spread []*spreadGroup[P]) bool {
	s.batches = s.batches[:0]
	for _, g := range spread {
		if len(g.later) == 0 {
			continue
		}
		b := g.later[0]
		g.later = g.later[1:]
		if slices.ContainsFunc(g.asked, denies) {
			for i := range b.Takes {
				if t := &b.Takes[i]; !t.Corrects() {
					t.Hits = min(t.Hits, 0)
				}
			}
		}
		g.asked = append(g.asked, b)
		s.batches = append(s.batches, b)
	}
	return len(s.batches) > 0
}

// denies reports whether one of a batch's takes is sure to deny the group.
func denies[P comparable](b *batch[P]) bool {
	for i := range b.Takes {
		if t, o := &b.Takes[i], &b.Outcomes[i]; t.Vote == VoteAll && (o.Failed || !o.Allowed) {
			return true
		}
	}
	return false
}

// run settles all batches concurrently.
func (s *splitting[P]) run(ctx context.Context) error {
	errs := make([]error, len(s.batches))
	var wg sync.WaitGroup
	for n, b := range s.batches {
		b.Prepare()
		wg.Go(func() { errs[n] = s.take(ctx, b.place, &b.Request) })
	}
	wg.Wait()
	for _, b := range s.batches {
		b.Answer(s.whole)
	}
	return errors.Join(errs...)
}

// giveBackWithin is the minimum time before the end of its window at which a reserved hit is still given back. A later
// refund could reach the next window and give back the hits of others.
const giveBackWithin = 200 * time.Millisecond

// conclude finishes a group that was reserved in several places. If the group is denied or failed, its reserved hits
// are given back.
func (s *splitting[P]) conclude(ctx context.Context, sent time.Time, start, end int) error {
	takes, outcomes := s.whole.Takes[start:end], s.whole.Outcomes[start:end]
	failed := false
	for i := range outcomes { // a place that has no vote cannot deny the group by not answering
		failed = failed || outcomes[i].Failed && takes[i].Vote != VoteNone
	}
	denied := failed || Denied(takes, outcomes)
	least, most := granted(takes)
	if !denied && least == most {
		return nil
	}
	// The caller may have canceled. Its reserved hits are still given back, within the timeout of the store.
	err := s.giveBack(context.WithoutCancel(ctx), sent, takes, outcomes)
	switch {
	case failed: // a group is answered as a whole or not at all
		Fail(outcomes)
	case !denied && err == nil: // the places granted different numbers: the smallest of them may fit everywhere
		return s.reserveAgain(ctx, takes, outcomes, least)
	}
	return err
}

// giveBack gives back the hits that were reserved for the takes of a group.
func (s *splitting[P]) giveBack(ctx context.Context, sent time.Time, takes []Take, outcomes []Outcome) error {
	var back Request
	for i := range takes {
		o := &outcomes[i]
		if o.Failed || takes[i].always() || !o.Allowed || takes[i].Reservation == nil && o.Used == o.Before {
			continue
		}
		refund := takes[i]
		refund.Member = i
		if h := takes[i].Reservation; h != nil { // the stored reservation holds the number to give back, however late this is
			refund.Hits, refund.Reservation = 0, &Reservation{ID: h.ID, Op: OpCommit, Final: true}
			back.Takes = append(back.Takes, refund)
			h.Granted = 0
		} else if left := o.ResetAfter - time.Since(sent); left > giveBackWithin {
			refund.Hits = -refund.Hits
			back.Takes = append(back.Takes, refund)
		}
		o.Used = o.Before
	}
	back.Outcomes = make([]Outcome, len(back.Takes))
	err := Split(ctx, &back, s.place, s.take, nil)
	if s.gaveBack != nil {
		for i := range back.Takes { // even if that failed, because it may have been carried out
			s.gaveBack(&back.Takes[i], &back.Outcomes[i])
		}
	}
	return err
}

// reserveAgain settles a group again. Reservations that accept fewer hits than they ask for now ask for the smallest
// number that was granted to any of them, and accept nothing else.
func (s *splitting[P]) reserveAgain(ctx context.Context, takes []Take, outcomes []Outcome, least int64) error {
	again := Request{Together: true, Takes: slices.Clone(takes), Outcomes: outcomes}
	for i := range again.Takes {
		if h := takes[i].Reservation; h != nil && h.Op == OpReserve && h.Least > 0 {
			t := &again.Takes[i]
			t.Hits, t.Reservation = least, &Reservation{ID: h.ID, Op: OpReserve, TTL: h.TTL}
		}
	}
	err := Split(ctx, &again, s.place, s.take, s.gaveBack)
	for i := range again.Takes {
		if h := takes[i].Reservation; h != nil && h != again.Takes[i].Reservation {
			h.Result, h.Granted, h.Expires = again.Takes[i].Reservation.Result, again.Takes[i].Reservation.Granted,
				again.Takes[i].Reservation.Expires
		}
	}
	return err
}

// granted returns the smallest and the largest number of hits that were granted to reservations of a group that accept
// fewer than they ask for.
func granted(takes []Take) (least, most int64) {
	for i := range takes {
		if h := takes[i].Reservation; h != nil && h.Op == OpReserve && h.Least > 0 && h.Granted > 0 {
			if least == 0 || h.Granted < least {
				least = h.Granted
			}
			most = max(most, h.Granted)
		}
	}
	return least, most
}
