package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// bank sends random steps to a store, keeps the account of each counter in plain arithmetic, and compares. It shares no
// code with the stores.
type bank struct {
	chance
	store   backend.Starter
	now     int64
	step    int64
	ids     int64 // number of reservations so far, which gives their IDs
	history []event

	// possible are the accounts as they may be: one set for each way in which steps whose answer was lost took place or
	// did not. Every answer must agree with one of the sets. The sets that it contradicts are dropped.
	possible     [][]*account
	took, didNot int // how many steps with a lost answer took place, and how many did not, as far as later answers tell
}

// ErrLost is the error of Start of a store if the answer was lost. The request was carried out, or it was not.
var ErrLost = errors.New("the answer is lost")

// account is the expected content of a counter. The counter's window is a fixed window on the clock, or long enough
// that no hit leaves it.
type account struct {
	key          []byte
	limit        *descriptor.Limit
	start        int64 // start of the window of used, unless nothing leaves it
	end          int64
	used         int64
	log          []int64               // sliding log, concurrency: time of each hit
	reservations []*accountReservation // the oldest first
}

type accountReservation struct {
	id                backend.ReservationID
	charged, reported int64
	mark              int64 // when it was reserved
	expires, keep     int64
	released          bool
}

// chance decides what happens in a bank.
type chance interface {
	failer
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)

	// below draws a number from 0 to n-1. A test that fails prefers small ones.
	below(n int64, what string) int64
}

type rapidChance struct{ *rapid.T }

func (c rapidChance) below(n int64, what string) int64 {
	return rapid.Int64Range(0, n-1).Draw(c.T, what)
}

type randomChance struct {
	testing.TB
	*rand.Rand
}

func (c randomChance) below(n int64, _ string) int64 { return c.Int64N(n) }

// between draws a number from least to most.
func (b *bank) between(least, most int64, what string) int64 {
	return least + b.below(most-least+1, what)
}

// one in n draws are true.
func (b *bank) oneIn(n int64, what string) bool { return b.below(n, what) == n-1 }

// mostReservations is the most reservations of a counter, so that every call can deal with all that have ended.
const mostReservations = 6

func newBank(c chance, s backend.Starter) *bank {
	b := &bank{chance: c, store: s, now: epoch.UnixMicro()}
	prefix := newCase()
	var accounts []*account
	for i := range b.between(1, 3, "counters") {
		n := int(b.between(1, 30, "limit"))
		limits := EveryAlgorithm(n)
		limits["a minute"], limits["ten minutes"] = Limit(fmt.Sprintf("%d/1m", n)), Limit(fmt.Sprintf("%d/10m", n))
		maps.DeleteFunc(limits, func(_ string, l *descriptor.Limit) bool { return !reservable(l) })
		names := slices.Sorted(maps.Keys(limits))
		l := limits[names[b.below(int64(len(names)), "algorithm")]]
		allow(l).Release = b.oneIn(2, "release")
		l.Reservations.MaxOutstanding = int(b.between(1, mostReservations, "most"))
		if b.oneIn(4, "bounded") {
			l.Reservations.MaxShare = uint32(b.between(1, 1_000_000, "share"))
		}
		accounts = append(accounts, &account{key: key(prefix, fmt.Sprint(i), l), limit: l})
	}
	b.possible = [][]*account{accounts}
	return b
}

func (b *bank) run(steps int64) {
	for range b.between(1, steps, "steps") {
		b.step++
		if b.oneIn(2, "later") {
			// Whole milliseconds pass, and the microseconds of a ttl are the number of the step: no two reservations end at
			// once.
			b.now += 1000 * b.below([]int64{20_000, 200_000}[b.below(2, "long")], "pause")
		}
		b.request()
		for i, a := range b.possible[0] {
			b.ask(false, []int{i}, []backend.Take{{Key: a.key, Limit: a.limit}})
		}
	}
}

// request sends a random step to some of the counters.
func (b *bank) request() {
	var which []int
	for i := range b.possible[0] {
		which = append(which, i)
	}
	for i := range which {
		j := int64(i) + b.below(int64(len(which)-i), "order")
		which[i], which[j] = which[j], which[i]
	}
	which = which[:b.between(1, int64(len(which)), "takes")]
	var reservation *backend.Reservation
	id, hits := b.below(b.ids+1, "id"), b.between(0, 12, "hits")
	switch b.below(8, "what") {
	case 0:
		hits = -hits
	case 1:
	case 2, 3, 4:
		if !b.oneIn(4, "held") {
			b.ids++
			id = b.ids
		}
		reservation = &backend.Reservation{Op: backend.OpReserve, TTL: b.ttl()}
		if hits > 0 && b.oneIn(2, "smaller") {
			reservation.Least = b.between(1, hits, "least")
		}
	case 5:
		reservation = &backend.Reservation{Op: backend.OpCommit, Final: true, ChargeUnknown: b.oneIn(4, "unknown")}
	case 6:
		reservation = &backend.Reservation{Op: backend.OpCommit}
	case 7:
		reservation, hits = &backend.Reservation{Op: backend.OpExtend, TTL: b.ttl()}, 0
	}
	var takes []backend.Take
	for i, n := range which {
		a := b.possible[0][n]
		t := backend.Take{Key: a.key, Limit: a.limit, Hits: hits, Member: i}
		if reservation != nil {
			h := *reservation
			h.ID = reservationID(id)
			t.Reservation = &h
		}
		takes = append(takes, t)
	}
	b.ask(b.oneIn(2, "together"), which, takes)
}

func (b *bank) ttl() int64 {
	return 1_000_000*[]int64{1, 10, 50}[b.below(3, "ttl")] + b.step
}

// ask sends takes on some of the counters to the store, and compares its answers with the accounts.
func (b *bank) ask(together bool, which []int, takes []backend.Take) {
	r := &backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: together}
	err := backend.Await(context.Background(), b.store, time.UnixMicro(b.now), r)
	lost := errors.Is(err, ErrLost)
	if err != nil && !lost {
		b.Fatal(err)
	}
	var got, want []answer
	for i := range takes {
		a := answer{allowed: r.Outcomes[i].Allowed, before: r.Outcomes[i].Before, used: r.Outcomes[i].Used}
		if h := takes[i].Reservation; h != nil {
			a.result, a.granted, a.expires = h.Result, h.Granted, h.Expires
		}
		got = append(got, a)
	}
	possible := b.possible
	b.possible = nil
	for _, all := range possible {
		if lost { // it did not take place
			b.consider(cloneAccounts(all))
		}
		var accounts []*account
		for _, n := range which {
			accounts = append(accounts, all[n])
		}
		want = nil
		if together {
			want = b.settle(accounts, takes)
		} else {
			for i := range takes {
				want = append(want, b.settle(accounts[i:i+1], takes[i:i+1])...)
			}
		}
		if lost || slices.Equal(got, want) {
			b.consider(all)
		}
	}
	if len(b.history) == 100 {
		b.history = slices.Delete(b.history, 0, 50)
	}
	b.history = append(b.history, event{b.now, together, lost, takes, want})
	if len(b.possible) == 0 {
		for _, e := range b.history {
			for j := range e.takes {
				b.Logf("at %v, together %v, lost %v: %s: %+v", time.UnixMicro(e.at).Sub(epoch), e.together, e.lost,
					takeText(&e.takes[j]), e.answers[j])
			}
		}
		b.Fatalf("got %+v, want %+v", got, want)
	}
	if len(possible) == 2 && len(b.possible) == 1 && !lost {
		if b.possible[0][0] == possible[0][0] { // the accounts without the lost step come first
			b.didNot++
		} else {
			b.took++
		}
	}
}

// consider adds a set of accounts to the possible ones, unless it is among them.
func (b *bank) consider(accounts []*account) {
	known := slices.ContainsFunc(b.possible, func(other []*account) bool {
		return slices.EqualFunc(other, accounts,
			(*account).equal)
	})
	if !known {
		b.possible = append(b.possible, accounts)
	}
}

// equal reports whether two accounts of one counter are the same.
func (a *account) equal(other *account) bool {
	return a.start == other.start && a.end == other.end && a.used == other.used && slices.Equal(a.log, other.log) &&
		slices.EqualFunc(a.reservations, other.reservations, func(h, o *accountReservation) bool { return *h == *o })
}

func cloneAccounts(accounts []*account) []*account {
	var all []*account
	for _, a := range accounts {
		c := *a
		c.log, c.reservations = slices.Clone(a.log), nil
		for _, h := range a.reservations {
			copied := *h
			c.reservations = append(c.reservations, &copied)
		}
		all = append(all, &c)
	}
	return all
}

// event is a step with its expected answers, for the message of a test that fails.
type event struct {
	at       int64
	together bool
	lost     bool // whether the answer was lost
	takes    []backend.Take
	answers  []answer
}

// answer is a store's answer to a take.
type answer struct {
	allowed          bool
	before, used     int64
	result           backend.ReservationResult
	granted, expires int64
}

// settle changes accounts as a store should change counters that are settled as one.
func (b *bank) settle(accounts []*account, takes []backend.Take) []answer {
	answers := make([]answer, len(takes))
	passes, grant := true, int64(1)<<60
	for i, a := range accounts {
		a.roll(b.now)
		answers[i] = a.judge(&takes[i], b.now)
		passes = passes && answers[i].allowed
		if h := takes[i].Reservation; h != nil && h.Op == backend.OpReserve {
			grant = min(grant, answers[i].granted)
		}
	}
	for i, a := range accounts {
		before := a.used
		if h := takes[i].Reservation; h != nil && h.Op == backend.OpReserve {
			answers[i].granted, answers[i].expires = 0, 0
			if passes {
				answers[i].granted = grant
			}
		}
		if passes || takes[i].Reservation != nil && takes[i].Reservation.Op != backend.OpReserve || takes[i].Hits < 0 {
			a.take(&takes[i], &answers[i], b.now)
		}
		answers[i].before, answers[i].used = before, a.used
	}
	return answers
}

// judge returns whether a take passes, and how many hits a reservation could get.
func (a *account) judge(t *backend.Take, now int64) (w answer) {
	room := int64(a.limit.Capacity()) - a.used
	if t.Reservation == nil {
		w.allowed = t.Hits < 0 || t.Hits <= room
		return w
	}
	if t.Reservation.Op != backend.OpReserve {
		w.allowed = true
		return w
	}
	share := int64(a.limit.Capacity()) * int64(a.limit.Reservations.MaxShare) / 1_000_000
	least := t.Reservation.Least
	if least == 0 {
		least = t.Hits
	}
	switch {
	case least > share:
		w.result = backend.ReservationTooLarge
	case !a.admits(now):
		w.result = backend.TooManyReservations
	default:
		w.granted = max(0, min(t.Hits, share, room))
		w.allowed = w.granted >= least && room >= 0
	}
	return w
}

// admits reports whether a counter has a place for one more reservation.
func (a *account) admits(now int64) bool {
	return len(a.reservations) < a.limit.Reservations.MaxOutstanding ||
		slices.ContainsFunc(a.reservations, func(h *accountReservation) bool { return h.expires <= now })
}

// take carries out a take that passes.
func (a *account) take(t *backend.Take, w *answer, now int64) {
	h := t.Reservation
	if h == nil {
		a.plain(t.Hits, now)
		return
	}
	if h.Op == backend.OpReserve {
		a.reserve(h, w, now)
		return
	}
	at := slices.IndexFunc(a.reservations, func(e *accountReservation) bool { return e.id == h.ID })
	if at < 0 || h.Op == backend.OpExtend && a.reservations[at].expires <= now {
		w.result = backend.ReservationUnknown
		if h.Op == backend.OpCommit && h.ChargeUnknown {
			a.change(now, t.Hits)
		}
		return
	}
	e := a.reservations[at]
	switch {
	case h.Op == backend.OpExtend:
		e.expires = max(e.expires, now+h.TTL)
		e.keep = max(e.keep, e.expires+max(h.TTL, time.Minute.Microseconds()))
		w.expires = e.expires
		if a.limit.Algorithm == descriptor.Concurrency && now > e.mark { // its places are taken from now on
			a.change(e.mark, -e.charged)
			a.change(now, e.charged)
			e.mark = now
		}
	case h.Final:
		a.change(e.mark, t.Hits-e.charged)
		a.reservations = slices.Delete(a.reservations, at, at+1)
	default:
		e.reported = max(e.reported, t.Hits)
		a.change(e.mark, max(0, e.reported-e.charged))
		e.charged = max(e.charged, e.reported)
	}
}

// plain adds hits, or gives them back. More than are used can only be given back to a bucket.
func (a *account) plain(hits, now int64) {
	if a.used+hits < 0 && a.limit.Algorithm != descriptor.TokenBucket {
		return
	}
	if hits < 0 && a.limit.Algorithm == descriptor.SlidingLog { // the newest ones go
		a.used += hits
		a.log = a.log[:a.used]
		return
	}
	if hits < 0 && a.limit.Algorithm == descriptor.Concurrency { // the oldest ones go
		a.log = a.log[-hits:]
		a.used += hits
		return
	}
	a.change(now, hits)
}

func (a *account) reserve(h *backend.Reservation, w *answer, now int64) {
	if len(a.reservations) >= a.limit.Reservations.MaxOutstanding {
		oldest := -1
		for i, e := range a.reservations {
			if e.expires <= now && (oldest < 0 || e.expires < a.reservations[oldest].expires) {
				oldest = i
			}
		}
		a.reservations = slices.Delete(a.reservations, oldest, oldest+1)
	}
	a.change(now, w.granted)
	w.expires = now + h.TTL
	a.reservations = append(a.reservations, &accountReservation{
		id: h.ID, charged: w.granted, mark: now,
		expires: w.expires, keep: w.expires + max(h.TTL, time.Minute.Microseconds()),
	})
}

// roll brings an account up to a time.
func (a *account) roll(now int64) {
	if a.limit.Window.Unit != descriptor.Year && now >= a.end {
		a.start, a.end = a.limit.Window.Bounds(now)
		a.used = 0
	}
	for _, h := range a.reservations {
		if a.limit.Reservations.Release && h.expires <= now && !h.released {
			a.change(h.mark, h.reported-h.charged)
			h.charged, h.released = h.reported, true
		}
	}
	a.reservations = slices.DeleteFunc(a.reservations, func(h *accountReservation) bool { return h.keep <= now })
}

// change adds hits to the window of an earlier time, if it is not over. Where windows start with a hit, the window of
// an empty counter is over.
func (a *account) change(mark, hits int64) {
	if a.limit.FirstHit && a.used == 0 && hits > 0 {
		a.start = mark
	}
	if mark < a.start && a.limit.Algorithm == descriptor.FixedWindow {
		return
	}
	a.used = max(0, a.used+hits)
	switch capacity := int64(a.limit.Capacity()); a.limit.Algorithm {
	case descriptor.TokenBucket:
		a.used = min(a.used, capacity) // it contains no more
	case descriptor.SlidingLog, descriptor.Concurrency:
		mark += a.limit.Arithmetic.Quantum - 1
		mark -= mark % a.limit.Arithmetic.Quantum // a log has no finer times, and none before its first one
		if len(a.log) == 0 {
			a.start = mark
		}
		mark = max(mark, a.start)
		first, _ := slices.BinarySearch(a.log, mark)
		if hits > 0 {
			a.log = slices.Insert(a.log, first, slices.Repeat([]int64{mark}, int(hits))...)
			a.log = a.log[max(0, int64(len(a.log))-capacity):]
		} else {
			end := min(first+int(-hits), len(a.log))
			if a.limit.Algorithm == descriptor.Concurrency { // entries of other times stay, unless too few have this time
				end = first
				for end < min(first+int(-hits), len(a.log)) && a.log[end] == mark {
					end++
				}
			}
			a.log = slices.Delete(a.log, first, end)
			if a.limit.Algorithm == descriptor.Concurrency {
				a.log = a.log[min(int(-hits)-(end-first), len(a.log)):]
			}
		}
		a.used = int64(len(a.log))
	}
}

func takeText(t *backend.Take) string {
	text := fmt.Sprintf("%s %s, %d hits", t.Key, limitText(t.Limit), t.Hits)
	if h := t.Reservation; h != nil {
		text += fmt.Sprintf(", step %d of %x, ttl %v, least %d, final %v, unknown %v", h.Op, h.ID[6:8],
			time.Duration(h.TTL)*time.Microsecond, h.Least, h.Final, h.ChargeUnknown)
	}
	return text
}
