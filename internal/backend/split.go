package backend

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Split settles a request whose counters live in several places that cannot be changed as one: slots of a cluster, or
// two Redis. place says where a take's counter lives; take settles a part whose counters all live in one place.
//
// What has to be settled together over several places is reserved in each of them, side by side, and given back if any
// of them refuses. So it never admits too much; what it reserved is missing to others until it is given back, and a
// process that dies in between leaks the hits of one request at most.
func Split[P comparable](ctx context.Context, r *Request, place func(*Take) P, take func(context.Context, P, *Request) error) error {
	first := place(&r.Takes[0])
	same := true
	for i := 1; i < len(r.Takes) && same; i++ {
		same = place(&r.Takes[i]) == first
	}
	if same {
		return take(ctx, first, r)
	}

	s := splitting[P]{request: r, take: take}
	var spread [][2]int // groups whose takes live in several places
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		at := place(&r.Takes[start])
		alone := true
		for i := start + 1; i < end && alone; i++ {
			alone = place(&r.Takes[i]) == at
		}
		if alone {
			s.add(s.part(at, end-start > 1), start, end)
		} else {
			spread = append(spread, [2]int{start, end})
			parts := make(map[P]*part[P])
			for i := start; i < end; i++ {
				p := place(&r.Takes[i])
				if parts[p] == nil {
					parts[p] = s.part(p, true)
				}
				s.add(parts[p], i, i+1)
			}
		}
		start = end
	}
	sent := time.Now()
	err := s.run(ctx)
	for _, g := range spread {
		err = errors.Join(err, s.conclude(ctx, sent, g[0], g[1], place))
	}
	return err
}

// splitting is a request on its way to several places.
type splitting[P comparable] struct {
	request *Request
	parts   []*part[P]
	take    func(context.Context, P, *Request) error
}

// part is what goes to one place in one call.
type part[P comparable] struct {
	place   P
	request Request
	index   []int // of its takes in the whole request
}

// part returns the part for takes that go to a place: those that are settled each for itself share one, those that are
// settled together have one of their own.
func (s *splitting[P]) part(place P, together bool) *part[P] {
	if !together {
		for _, p := range s.parts {
			if p.place == place && !p.request.Together {
				return p
			}
		}
	}
	p := &part[P]{place: place, request: Request{Together: together}}
	s.parts = append(s.parts, p)
	return p
}

func (s *splitting[P]) add(p *part[P], start, end int) {
	for i := start; i < end; i++ {
		p.index = append(p.index, i)
		p.request.Takes = append(p.request.Takes, s.request.Takes[i])
	}
}

// run settles all parts side by side.
func (s *splitting[P]) run(ctx context.Context) error {
	errs := make([]error, len(s.parts))
	var wg sync.WaitGroup
	for n, p := range s.parts {
		p.request.Outcomes = make([]Outcome, len(p.request.Takes))
		if p.request.Together {
			// Whether all members that vote Any were refused is known only when all places have answered.
			for i := range p.request.Takes {
				if p.request.Takes[i].Vote == VoteAny {
					p.request.Takes[i].Vote = VoteNone
				}
			}
		}
		wg.Go(func() { errs[n] = s.take(ctx, p.place, &p.request) })
	}
	wg.Wait()
	for _, p := range s.parts {
		for i, at := range p.index {
			s.request.Outcomes[at] = p.request.Outcomes[i]
		}
	}
	return errors.Join(errs...)
}

// giveBackWithin is how long before its window's end a reserved hit is still given back. Later, the refund could reach
// the next window and give back what others took there.
const giveBackWithin = 200 * time.Millisecond

// conclude says what becomes of a group that was reserved in several places.
func (s *splitting[P]) conclude(ctx context.Context, sent time.Time, start, end int, place func(*Take) P) error {
	takes, outcomes := s.request.Takes[start:end], s.request.Outcomes[start:end]
	failed := false
	for i := range outcomes {
		failed = failed || outcomes[i].Failed
	}
	if !failed && !Refused(takes, outcomes) {
		return nil
	}
	back := splitting[P]{request: &Request{}, take: s.take}
	for i := range takes {
		o := &outcomes[i]
		if o.Failed || takes[i].Hits <= 0 || !o.Allowed || o.Used == o.Before {
			continue
		}
		if left := o.ResetAfter - time.Since(sent); left > giveBackWithin {
			refund := takes[i]
			refund.Hits = -refund.Hits
			back.request.Takes = append(back.request.Takes, refund)
			n := len(back.request.Takes) - 1
			back.add(back.part(place(&refund), false), n, n+1)
		}
		o.Used = o.Before
	}
	if failed { // a group is answered as a whole or not at all
		for i := range outcomes {
			outcomes[i] = Outcome{Failed: true}
		}
	}
	if len(back.parts) == 0 {
		return nil
	}
	back.request.Outcomes = make([]Outcome, len(back.request.Takes))
	// The caller may be gone: what was reserved is given back all the same, within the store's own time.
	return back.run(context.WithoutCancel(ctx))
}
