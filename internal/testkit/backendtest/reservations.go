package backendtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// RunReservations tests reservations on the stores that open returns: how they are made, committed, cancelled and
// extended, and how they expire. open may return the same store each time.
func RunReservations(t *testing.T, open func(t testing.TB) backend.Store) {
	t.Run("scripts", func(t *testing.T) { runScripts(t, open, "testdata/reservations") })
	t.Run("ledger", func(t *testing.T) {
		s := open(t)
		rapid.Check(t, func(rt *rapid.T) { newBank(rapidChance{rt}, s).run(40) })
	})
	t.Run("model", func(t *testing.T) { runModel(t, open, true) })
	t.Run("bounds", func(t *testing.T) { runReservationBounds(t, open(t)) })
	t.Run("concurrent", func(t *testing.T) { runReservationsConcurrent(t, open) })
	t.Run("reset", func(t *testing.T) { runReservationsReset(t, open(t)) })
}

// RunReservationsTogether tests groups with several takes of one counter, where some takes reserve.
func RunReservationsTogether(t *testing.T, open func(t testing.TB) backend.Store) {
	t.Run("scripts", func(t *testing.T) { runScripts(t, open, "testdata/reservations_together") })
	t.Run("all or nothing", func(t *testing.T) {
		s := open(t)
		rapid.Check(t, func(rt *rapid.T) { runAllOrNothing(rt, s) })
	})
}

// RunReservationsStepped tests that a reservation does not last longer than its rule allows when the clock is set back.
func RunReservationsStepped(t *testing.T, open func(t testing.TB) backend.Store) {
	for _, limit := range []string{"10/1d", "10/1d,first_hit", "10/1d,token,burst=10", "5/1m,places"} {
		for _, step := range []time.Duration{time.Second, time.Minute, time.Hour, 5 * time.Hour} {
			t.Run(fmt.Sprintf("%s, back by %v", limit, step), func(t *testing.T) {
				l := *Limit(limit)
				bounds := descriptor.DefaultReservations()
				bounds.MaxTTL, bounds.Release = 5*time.Minute, true
				l.Reservations = &bounds
				s, k, now := open(t), key(newCase(), "k", &l), epoch.Add(6*time.Hour)
				take := func(hits int64, h *backend.Reservation) backend.Outcome {
					return one(t, s, now, backend.Take{Key: k, Limit: &l, Hits: hits, Reservation: h})
				}
				n := int64(l.Capacity())
				for id := range n {
					take(1, &backend.Reservation{ID: reservationID(id), Op: backend.OpReserve, TTL: time.Hour.Microseconds()})
				}
				now = now.Add(-step)
				if o := take(0, nil); o.Used != n {
					t.Fatalf("after the step: %s", outcomeText(&o))
				}
				h := &backend.Reservation{ID: reservationID(n), Op: backend.OpReserve}
				if o := take(1, h); o.Allowed {
					t.Fatalf("after the step: %s", outcomeText(&o))
				}
				now = now.Add(bounds.MaxTTL + time.Second)
				take(0, nil) // some stores deal with few reservations in one call
				if o := take(n-setBack(&l, step-bounds.MaxTTL-time.Second), nil); !o.Allowed {
					t.Errorf("when all have expired: %s", outcomeText(&o))
				}
				late := &backend.Reservation{ID: reservationID(0), Op: backend.OpCommit, Final: true}
				if take(0, late); late.Result != backend.ReservationDone || !late.Late {
					t.Errorf("a late commit: %+v", late)
				}
				now = now.Add(bounds.MaxTTL + time.Second)
				take(0, nil)
				gone := &backend.Reservation{ID: reservationID(1), Op: backend.OpCommit, Final: true}
				if take(0, gone); gone.Result != backend.ReservationUnknown {
					t.Errorf("a commit after the reservation is gone: %+v", gone)
				}
			})
		}
	}
}

// setBack returns for how many hits a bucket lies further ahead after its clock went back by this much. It cannot know
// whether a clock or a lower limit is the reason, so it drains as time passes, and no reservation gives it back.
func setBack(l *descriptor.Limit, by time.Duration) int64 {
	if l.Algorithm != descriptor.TokenBucket || by <= 0 {
		return 0
	}
	return int64(by)*int64(l.Requests)/int64(l.Window.Length()) + 1
}

// runAllOrNothing sends groups of plain takes, reservations and commits on two counters. A group passes if, on each
// counter, all its hits fit in addition to those in use after its commits. Otherwise it takes nothing.
func runAllOrNothing(t *rapid.T, s backend.Store) {
	const most = 12
	l := Limit(fmt.Sprintf("%d/1h,reservations", most))
	type counter struct {
		key      []byte
		used     int64
		reserved map[int64]int64 // hits by number of the reservation
	}
	prefix := newCase()
	counters := []*counter{{key: key(prefix, "a", l), reserved: map[int64]int64{}},
		{key: key(prefix, "b", l), reserved: map[int64]int64{}}}
	ids := int64(0)
	for range rapid.IntRange(1, 20).Draw(t, "groups") {
		r, asked := &backend.Request{Together: true}, map[*counter]int64{}
		for i := range rapid.IntRange(1, 5).Draw(t, "takes") {
			c := rapid.SampledFrom(counters).Draw(t, "counter")
			take := backend.Take{Key: c.key, Limit: l, Hits: rapid.Int64Range(1, 7).Draw(t, "hits"), Member: i}
			switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case kind == 0:
				asked[c] += take.Hits
			case kind == 1 && len(c.reserved) > 0:
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(c.reserved))).Draw(t, "id")
				take.Hits = rapid.Int64Range(0, c.reserved[id]).Draw(t, "actual")
				take.Reservation = &backend.Reservation{ID: reservationID(id), Op: backend.OpCommit, Final: true}
				c.used += take.Hits - c.reserved[id]
				delete(c.reserved, id)
			default:
				ids++
				take.Reservation = &backend.Reservation{ID: reservationID(ids), Op: backend.OpReserve,
					TTL: time.Minute.Microseconds()}
				asked[c] += take.Hits
			}
			r.Takes = append(r.Takes, take)
		}
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		if err := backend.Await(context.Background(), s, epoch, r); err != nil {
			t.Fatal(err)
		}
		fits, reserves := true, false
		for c, hits := range asked {
			fits = fits && c.used+hits <= most
		}
		for i := range r.Takes {
			reserves = reserves || r.Takes[i].Reservation != nil && r.Takes[i].Reservation.Op == backend.OpReserve
		}
		if !reserves && !fits { // each plain take of one counter is judged alone: a limiter makes one take of them
			return
		}
		if passed := !backend.Denied(r.Takes, r.Outcomes); passed != fits {
			t.Fatalf("passed: %v, want %v: %+v", passed, fits, r.Outcomes)
		}
		for i := range r.Takes {
			h := r.Takes[i].Reservation
			if h == nil || h.Op != backend.OpReserve {
				continue
			}
			want := int64(0)
			if fits {
				want = r.Takes[i].Hits
				c := counters[slices.IndexFunc(counters, func(c *counter) bool { return string(c.key) == string(r.Takes[i].Key) })]
				c.reserved[int64(binary.BigEndian.Uint64(h.ID[:]))] = want
			}
			if h.Granted != want {
				t.Fatalf("take %d is granted %d, want %d", i, h.Granted, want)
			}
		}
		for _, c := range counters {
			if fits {
				c.used += asked[c]
			}
			if o := one(t, s, epoch, backend.Take{Key: c.key, Limit: l}); o.Used != c.used {
				t.Fatalf("%s: %d in use, want %d", c.key, o.Used, c.used)
			}
		}
	}
}

// reservable reports whether a limit may have reservations.
func reservable(l *descriptor.Limit) bool {
	return l.Algorithm <= descriptor.TokenBucket || l.Algorithm == descriptor.Concurrency
}

// reservationID is a different id for each number.
func reservationID(n int64) (id backend.ReservationID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// runReservationBounds floods one counter with takes, reservations and commits, with a clock that goes forward, and
// with one that is stepped.
func runReservationBounds(t *testing.T, s backend.Store) {
	for _, stepped := range []bool{false, true} {
		rapid.Check(t, func(rt *rapid.T) {
			l := rapid.Custom(func(rt *rapid.T) *descriptor.Limit { return drawSmall(rt, units) }).
				Filter(func(l *descriptor.Limit) bool { return reservable(l) && !l.FirstHit }).Draw(rt, "limit")
			f := newFlood(rapidChance{rt}, s, l)
			f.stepped = stepped
			f.run(50)
		})
	}
}

// flood sends takes, reservations and commits to one counter. No commit is of more than was reserved. Then the limit
// holds as if each reservation had been a take of its final amount, at the time of the reservation. A bucket has no
// windows: there, it holds as if each commit had been a refund.
type flood struct {
	chance
	store    backend.Starter
	key      []byte
	limit    *descriptor.Limit
	now      int64 // true time
	stepped  bool  // whether the clock is set back and ahead: each step may allow the limit once more
	ahead    int64 // lead of the store's clock over true time
	steps    []int64
	net      []admission   // a reservation counts with the hits that it holds
	reserved map[int64]int // index of the admission of each reservation
	ids      int64
}

func newFlood(c chance, s backend.Starter, l *descriptor.Limit) *flood {
	f := &flood{chance: c, store: s, limit: l, reserved: make(map[int64]int)}
	bounds := descriptor.DefaultReservations()
	bounds.MaxTTL = 2 * l.Window.Length()
	l.Reservations = &bounds
	f.key = key(newCase(), "k", l)
	f.now = epoch.UnixMicro() + c.below(30*24*3600*1_000_000, "begin")
	return f
}

func (f *flood) run(steps int64) {
	length := f.limit.Window.Length().Microseconds()
	pause := length / max(1, 2*int64(f.limit.Requests))
	for range steps {
		f.now += []int64{0, f.below(pause+1, "pause"), f.below(4*pause+1, "pause")}[f.below(3, "long")]
		if f.stepped && f.below(10, "step") == 9 {
			f.ahead += (f.below(9, "windows")-4)*length + f.below(length, "and") - length/2
			f.ahead = max(f.ahead, -200*length, 1-f.now) // no clock is before 1970
			f.steps = append(f.steps, f.now)
		}
		if len(f.reserved) > 0 && f.below(2, "commit") == 1 {
			f.commit()
		} else {
			f.take()
		}
	}
}

func (f *flood) one(t backend.Take) (o backend.Outcome, lost bool) {
	t.Key, t.Limit = f.key, f.limit
	r := &backend.Request{Takes: []backend.Take{t}, Outcomes: make([]backend.Outcome, 1)}
	err := backend.Await(context.Background(), f.store, time.UnixMicro(f.now+f.ahead), r)
	if lost = errors.Is(err, ErrLost); err != nil && !lost {
		f.Fatal(err)
	}
	return r.Outcomes[0], lost
}

func (f *flood) take() {
	t := backend.Take{Hits: 1 + f.below(4, "hits")}
	if f.below(4, "plain") > 0 {
		f.ids++
		t.Reservation = &backend.Reservation{ID: reservationID(f.ids), Op: backend.OpReserve,
			TTL: 1 + f.below(2*f.limit.Window.Length().Microseconds(), "ttl")}
	}
	if o, lost := f.one(t); !o.Allowed || lost { // hits that may have passed unnoticed use no more room than known ones
		return
	}
	if t.Reservation != nil {
		if t.Reservation.Granted != t.Hits {
			f.Fatalf("%d granted of %d", t.Reservation.Granted, t.Hits)
		}
		f.reserved[f.ids] = len(f.net)
	}
	f.net = append(f.net, admission{f.now, t.Hits})
	f.check()
}

func (f *flood) commit() {
	ids := slices.Sorted(maps.Keys(f.reserved))
	id := ids[f.below(int64(len(ids)), "hold")]
	n := f.reserved[id]
	delete(f.reserved, id)
	actual := f.below(f.net[n].hits+1, "actual")
	h := backend.Reservation{ID: reservationID(id), Op: backend.OpCommit, Final: true}
	_, lost := f.one(backend.Take{Hits: actual, Reservation: &h})
	switch { // hits that may have been given back count as given back
	case !lost && h.Result == backend.ReservationUnknown:
	case f.limit.Algorithm == descriptor.TokenBucket:
		f.net = append(f.net, admission{f.now, actual - f.net[n].hits})
	default:
		f.net[n].hits = actual
	}
}

// check checks each span that ends with the last admission.
func (f *flood) check() {
	last, sum := f.net[len(f.net)-1].at, int64(0)
	for i := len(f.net) - 1; i >= 0; i-- {
		sum += f.net[i].hits
		from := f.net[i].at
		if i > 0 && f.net[i-1].at == from {
			continue // the span starts with all hits of one time
		}
		most := admits(f.limit, from, last)
		if len(f.steps) > 0 { // the windows no longer start where admits expects them
			most += int64(f.limit.Capacity())
		}
		for _, at := range f.steps {
			if at >= from {
				most += int64(f.limit.Capacity())
			}
		}
		if sum > most {
			f.Fatalf("%s: %d passed and were not given back within %s, with %d steps of the clock; at most %d may",
				limitText(f.limit), sum, time.Duration(last-from)*time.Microsecond, len(f.steps), most)
		}
	}
	if len(f.net) > 200 { // old admissions
		f.net = f.net[100:]
		for id, n := range f.reserved {
			if f.reserved[id] = n - 100; n < 100 {
				delete(f.reserved, id)
			}
		}
	}
}

// runReservationsConcurrent checks that reservations and takes of many goroutines never use more than the limit, that
// one commit of a reservation counts, and that nothing is lost.
func runReservationsConcurrent(t *testing.T, open func(t testing.TB) backend.Store) {
	for name, l := range EveryAlgorithm(limited) {
		if !reservable(l) {
			continue
		}
		allow(l)
		t.Run(name, func(t *testing.T) {
			s, k := open(t), key(newCase(), "k", l)
			const rounds = 20
			var used, denied atomic.Int64
			together(t, func(worker int) error {
				take := func(hits int64, h *backend.Reservation) (backend.Outcome, error) {
					r := &backend.Request{Takes: []backend.Take{{Key: k, Limit: l, Hits: hits, Reservation: h}},
						Outcomes: make([]backend.Outcome, 1)}
					err := backend.Await(t.Context(), s, epoch, r)
					if o := r.Outcomes[0]; err == nil && o.Used > limited {
						err = fmt.Errorf("%d in use: %s", o.Used, outcomeText(&o))
					}
					return r.Outcomes[0], err
				}
				for i := range rounds {
					if worker%4 == 0 {
						o, err := take(1, nil)
						if err != nil {
							return err
						}
						if o.Allowed {
							used.Add(1)
						}
						continue
					}
					h := &backend.Reservation{ID: reservationID(int64(worker*rounds + i)), Op: backend.OpReserve,
						TTL: time.Minute.Microseconds(), Least: 2}
					if o, err := take(20, h); err != nil {
						return err
					} else if !o.Allowed {
						denied.Add(1)
						continue
					}
					if h.Granted < 2 || h.Granted > 20 {
						return fmt.Errorf("%d granted", h.Granted)
					}
					actual := int64(i % 2)
					commits := make(chan backend.ReservationResult, 2)
					errs := make(chan error, 2)
					for range 2 { // two holders commit the same reservation
						go func() {
							c := &backend.Reservation{ID: h.ID, Op: backend.OpCommit, Final: true}
							_, err := take(actual, c)
							commits <- c.Result
							errs <- err
						}()
					}
					first, second := <-commits, <-commits
					for range 2 {
						if err := <-errs; err != nil {
							return err
						}
					}
					if (first == backend.ReservationDone) == (second == backend.ReservationDone) {
						return fmt.Errorf("two commits of one reservation: %d and %d", first, second)
					}
					used.Add(actual)
				}
				return nil
			})
			if o := one(t, s, epoch, backend.Take{Key: k, Limit: l}); o.Used != used.Load() {
				t.Errorf("%d in use, %d were taken or committed; %d reservations were denied", o.Used, used.Load(), denied.Load())
			}
		})
	}
}

// runReservationsReset checks that a reset removes the reservations of its counter, and no others.
func runReservationsReset(t *testing.T, s backend.Store) {
	l, prefix := Limit("10/1h,reservations"), newCase()
	reset, other := key(prefix, "reset", l), key(prefix, "other", l)
	for _, k := range [][]byte{reset, other} {
		one(t, s, epoch, backend.Take{Key: k, Limit: l, Hits: 4,
			Reservation: &backend.Reservation{ID: reservationID(1), Op: backend.OpReserve, TTL: time.Minute.Microseconds()}})
	}
	if err := s.Reset(t.Context(), []backend.Counter{{Key: reset, Limit: l}}); err != nil {
		t.Fatal(err)
	}
	one(t, s, epoch, backend.Take{Key: reset, Limit: l, Hits: 3})
	for _, c := range []struct {
		key    []byte
		result backend.ReservationResult
		used   int64
	}{{reset, backend.ReservationUnknown, 3}, {other, backend.ReservationDone, 1}} {
		h := backend.Reservation{ID: reservationID(1), Op: backend.OpCommit, Final: true}
		one(t, s, epoch, backend.Take{Key: c.key, Limit: l, Hits: 1, Reservation: &h})
		if o := one(t, s, epoch, backend.Take{Key: c.key, Limit: l}); h.Result != c.result || o.Used != c.used {
			t.Errorf("%s: result %d with %d in use, want %d and %d", c.key, h.Result, o.Used, c.result, c.used)
		}
	}
}
