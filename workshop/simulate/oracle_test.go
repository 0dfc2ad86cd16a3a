package simulate

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// oracle records all requests and answers with the time of the store's clock. It shares no code with the service.
type oracle struct {
	events  []event
	changes []change
}

// event is a request and its answer.
type event struct {
	who
	step    step
	replica int
	limits  []uint64 // limits of its descriptors, in the version of the replica that answered

	started time.Duration // when it was asked, by the true time
	began   time.Time     // and by the store's clock
	// by the store's clock: when the store settled it, or when the replica answered without the store
	at      time.Time
	ended   time.Duration // the true time of at
	order   int           // position among all events, as the store and the replicas settled them
	asked   bool          // the store settled it
	failed  bool          // the client got no answer
	allowed bool

	statuses    []limiter.Status
	headers     []limiter.Header
	reservation limiter.ReservationOutcome
}

// change is a step that changes a limit.
type change struct {
	order int
	at    time.Duration // true time of the change
	step
}

// changing is how long after a change a replica may still decide by the old limit: the change arrives within a second,
// and requests and permits of the old limit need a moment to end.
const changing = 3 * time.Second

// assigned is how long an Envoy uses an assignment without hearing of the assigner.
const assigned = 30 * time.Second

// judge returns all mistakes.
func (o *oracle) judge(f *fleet) (wrong []string) {
	slices.SortStableFunc(o.events, func(a, b event) int { return cmp.Compare(a.order, b.order) })
	for rule := range rules {
		for caller := range callers {
			w := who{rule, caller}
			var events []event
			for _, e := range o.events {
				if e.who == w {
					events = append(events, e)
				}
			}
			h := history{f, w, events}
			wrong = append(wrong, h.headers()...)
			switch {
			case rules[rule].far && rules[rule].kind == bucket:
				wrong = append(wrong, append(h.acrossBucket(), h.live(o)...)...)
				continue
			case rules[rule].far:
				wrong = append(wrong, append(h.across(), h.live(o)...)...)
				continue
			case rules[rule].quota:
				wrong = append(wrong, h.drained()...)
				continue
			}
			switch calm := f.lost == 0 && !o.disturbed(); {
			case !calm:
			case rules[rule].kind == places:
				wrong = append(wrong, h.placed()...)
			case rules[rule].held:
			case rules[rule].hot:
				wrong = append(wrong, h.useful()...)
			default:
				wrong = append(wrong, h.exact()...)
			}
			for part := range o.calm(events) {
				h.events = part
				wrong = append(wrong, h.bounded()...)
			}
		}
	}
	return wrong
}

// disturbed reports whether a process was killed or the store's clock was set.
func (o *oracle) disturbed() bool {
	return slices.ContainsFunc(o.changes, func(c change) bool { return c.what == "kill" || c.what == "clock" })
}

// calm splits events where the store's clock was set. A change of the clock costs at most one limit, and replicas use
// old permits for a while.
func (o *oracle) calm(events []event) iter.Seq[[]event] {
	return func(yield func([]event) bool) {
		for _, c := range o.changes {
			if c.what != "clock" {
				continue
			}
			n, _ := slices.BinarySearchFunc(events, c.order, func(e event, order int) int { return cmp.Compare(e.order, order) })
			if !yield(events[:n]) {
				return
			}
			for events = events[n:]; len(events) > 0 && events[0].ended < c.at+changing; events = events[1:] {
			}
		}
		yield(events)
	}
}

// history is all events of one counter.
type history struct {
	f *fleet
	who
	events []event
}

func (h *history) wrong(e *event, format string, args ...any) string {
	return fmt.Sprintf("%s at %s by the store's clock: ", e.step, e.at.Format("15:04:05.000000")) + fmt.Sprintf(format, args...)
}

// most is the largest limit that a replica may have known at any moment of the time before an event.
func (h *history) most(before time.Duration, e *event) uint64 {
	_, most := h.possible(before, e)
	return most
}

// possible returns the smallest and the largest limit that a replica may have known.
func (h *history) possible(before time.Duration, e *event) (least, most uint64) {
	from, to := e.ended-before, e.ended
	least = math.MaxUint64
	possible := func(value uint64, since, until time.Duration) {
		if since <= to && until >= from && value > 0 {
			least, most = min(least, value), max(most, value)
		}
	}
	var began time.Duration
	number, since := h.f.versions[0][h.rule], began
	override, over := uint64(0), began
	for _, c := range h.f.seen.changes {
		switch {
		case c.what == "rules":
			possible(number, since, h.heard(c.at))
			number, since = h.f.versions[c.n][h.rule], c.at
		case c.what == "override" && c.rule == h.rule && c.caller == h.caller:
			possible(override, over, h.heard(c.at))
			override, over = uint64(c.n), c.at
		}
	}
	possible(number, since, to)
	possible(override, over, to)
	return least, most
}

// heard returns when the last replica or Envoy has heard of a change. An Envoy without a stream keeps its assignment
// until it has a stream again, or until the assignment expires.
func (h *history) heard(change time.Duration) time.Duration {
	at := change + changing
	if !rules[h.rule].quota {
		return at
	}
	for _, c := range h.f.seen.changes {
		if end := c.at + time.Duration(c.n)*time.Second; c.what == "stream" && c.at <= at && end+changing > at {
			at = end + changing
		}
	}
	return min(at, change+changing+assigned)
}

// bounded checks that the limit was never exceeded, in spite of all faults.
func (h *history) bounded() (wrong []string) {
	switch k := rules[h.rule].kind; k {
	case places:
		return h.held()
	case bucket, leaky:
		return h.drained()
	case first: // its windows start at any time, so only the model can check them
		return nil
	default:
		return h.windows(k)
	}
}

// admitted returns how many hits an answer allowed, and how many it returned.
func (e *event) admitted() (hits, returned int64) {
	switch e.step.what {
	case "request":
		if e.allowed && !e.failed {
			hits = e.step.n
		}
	case "refund":
		returned = -e.step.n
	case "reserve":
		if e.allowed && !e.failed {
			hits = e.reservation.Reserved
		}
	}
	return hits, returned
}

// windows checks windows on the clock, and for a log every window.
func (h *history) windows(k kind) (wrong []string) {
	type admission struct {
		at   time.Time
		hits int64
	}
	var all []admission
	reserved := make(map[byte]int64)
	for i := range h.events {
		e := &h.events[i]
		hits, returned := e.admitted()
		if e.step.what == "reserve" {
			reserved[e.step.id] = hits
		}
		if e.step.what == "commit" && e.asked { // the hits that it did not use are free again
			returned = max(reserved[e.step.id]-e.step.n, 0)
			delete(reserved, e.step.id)
		}
		// A lease may answer while one window ends and the next starts.
		if !e.asked && e.began.Truncate(window) != e.at.Truncate(window) && k != log {
			continue
		}
		all = append(all, admission{e.at, hits - returned})
		from := e.at.Truncate(window)
		if k == log {
			from = e.at.Add(-window)
		}
		sum := int64(0)
		for j := len(all) - 1; j >= 0 && all[j].at.After(from.Add(-1)); j-- {
			if k != log || all[j].at.After(from) {
				sum += all[j].hits
			}
		}
		if most := h.most(e.at.Sub(from), e); hits > 0 && sum > int64(most) {
			wrong = append(wrong, h.wrong(e, "%d admitted in this window, of %d", sum, most))
		}
	}
	return wrong
}

// across checks that all regions together never exceed the limit. For each request we only know two times of the
// stores' clock between which it was counted.
func (h *history) across() (wrong []string) {
	for i := range h.events {
		e := &h.events[i]
		if hits, _ := e.admitted(); hits == 0 {
			continue
		}
		sum := int64(0)
		for j := range h.events {
			o := &h.events[j]
			inside := o.began.Truncate(window).Equal(e.at.Truncate(window)) && o.at.Truncate(window).Equal(e.at.Truncate(window))
			if inside && o.ended <= e.ended {
				hits, _ := o.admitted()
				sum += hits
			}
		}
		if most := h.most(window, e); sum > int64(most) {
			wrong = append(wrong, h.wrong(e, "%d admitted in this window by all regions, of %d", sum, most))
		}
	}
	return wrong
}

// live checks that requests of an exhausted limit do not wait for the home: hardly more denied requests wait than pass.
// Each replica waits once to learn that the limit is used up, and for a moment after each change and each window.
func (h *history) live(o *oracle) (wrong []string) {
	const near = farthest / 4 // longer answers have waited for another region
	denied, waited, passed := 0, 0, 0
	for i := range h.events {
		e := &h.events[i]
		switch {
		case e.failed || e.step.what != "request":
		case e.allowed:
			passed++
		case e.ended-e.started > near:
			waited++
			fallthrough
		default:
			denied++
		}
	}
	windows := int(h.f.length / window)
	learning := h.f.setup.replicas * (windows + len(o.changes)) * 4 // requests of a trip or two, of each replica
	if waited > passed+denied/10+learning {
		wrong = append(wrong, fmt.Sprintf("%s of caller %d: of %d denied requests %d waited for another region, while %d passed", rules[h.rule].key, h.caller, denied, waited, passed))
	}
	return wrong
}

// acrossBucket checks that in any time of up to a window, all regions together pass at most the burst plus the hits
// that drain in that time. After a limit was lowered, a region that is cut off keeps its part of the old one until its
// grant expires.
func (h *history) acrossBucket() (wrong []string) {
	const (
		lives = 35 * time.Second
		early = 100 * time.Millisecond // how much longer ago a take may be counted than it was written
	)
	var latest []*event // the latest start first
	for i := range h.events {
		if hits, _ := h.events[i].admitted(); hits > 0 {
			latest = append(latest, &h.events[i])
		}
	}
	slices.SortStableFunc(latest, func(a, b *event) int { return cmp.Compare(b.started, a.started) })
	for _, e := range latest {
		sum, most := int64(0), float64(h.most(window+lives, e))
		for _, o := range latest {
			took := e.ended - o.started
			if took > window {
				break
			}
			if o.ended > e.ended {
				continue
			}
			hits, _ := o.admitted()
			sum += hits
			if flowed := most * float64(took+early) / float64(window) * 1.01; float64(sum) > most+flowed {
				wrong = append(wrong, h.wrong(e, "%d admitted in %s by all regions, of %.0f and %.1f that flowed in", sum, took, most, flowed))
				break
			}
		}
	}
	return wrong
}

// drained checks a bucket: admitted hits drain at the rate of the limit, and stay in use when the limit changes.
// Between two events, a replica may have counted a denied request by any limit that it may have known. So we assume the
// least use: at most the smallest limit in use, drained at the rate of the largest.
func (h *history) drained() (wrong []string) {
	level := 0.0 // hits in use, at least
	var last time.Time
	var ended time.Duration
	for i := range h.events {
		e := &h.events[i]
		hits, returned := e.admitted()
		if hits+returned == 0 {
			continue
		}
		smallest, largest := h.possible(max(e.ended-ended, 0), e)
		ended = e.ended
		small, size := float64(smallest), float64(largest)
		if rules[h.rule].kind == leaky {
			small, size = small+1, size+1
		}
		level = min(level, small)
		if e.at.After(last) {
			level -= float64(e.at.Sub(last)) / float64(window) * float64(largest)
			last = e.at
		}
		level = max(level, 0) + float64(hits)
		level = max(level-float64(returned), 0)
		if hits > 0 && level > size+0.011 {
			wrong = append(wrong, h.wrong(e, "%.6f of %v are in use", level, size))
			level = size
		}
	}
	return wrong
}

// held checks that no more places are taken than there are.
func (h *history) held() (wrong []string) {
	ends := make(map[byte]time.Time)
	for _, e := range h.events {
		if e.step.what == "commit" {
			if at, ok := ends[e.step.id]; !ok || e.began.Before(at) {
				ends[e.step.id] = e.began
			}
		}
	}
	var taken []time.Time // end of each place that is in use
	for i := range h.events {
		e := &h.events[i]
		if hits, _ := e.admitted(); hits == 0 {
			continue
		}
		until := e.at.Add(ttl)
		if at, ok := ends[e.step.id]; ok && at.Before(until) {
			until = at
		}
		taken = slices.DeleteFunc(taken, func(t time.Time) bool { return !t.After(e.at) })
		taken = append(taken, until)
		if most := h.most(0, e); uint64(len(taken)) > most {
			wrong = append(wrong, h.wrong(e, "%d places of %d are taken", len(taken), most))
		}
	}
	return wrong
}

// exact checks each answer where nothing failed: the verdict, the remaining hits, and when the same request would pass.
func (h *history) exact() (wrong []string) {
	var ms []model
	for i := range h.events[:min(len(h.events), 1)] {
		for j := range h.events[i].limits {
			make, ok := models[rules[h.rule+j].kind]
			if !ok {
				return nil
			}
			ms = append(ms, make())
		}
	}
	refunded := time.Duration(-1 << 40)
	for i := range h.events {
		e := &h.events[i]
		if e.failed {
			return append(wrong, h.wrong(e, "no answer, although nothing went wrong"))
		}
		if e.step.what == "refund" {
			m, ok := ms[0].(refunder)
			if !ok {
				return wrong
			}
			m.refund(e.at, -e.step.n, int64(e.limits[0]))
			refunded = e.ended
			continue
		}
		// The other replicas hear of a refund a moment later. Until then they repeat the denials that they remember.
		if !e.asked && e.ended < refunded+2*h.f.trip {
			continue
		}
		if m, ok := ms[0].(*classModel); ok {
			m.class = int(e.step.id)
		}
		want, unsure, passes := make([]answer, len(ms)), false, true
		for j, m := range ms {
			// A denial that a replica remembers ends by the replica's own clock.
			late := !e.asked && !m.judge(e.at.Add(-h.tolerance(e)), e.step.n, int64(e.limits[j])).allowed
			want[j] = m.judge(e.at, e.step.n, int64(e.limits[j]))
			want[j].unsure = want[j].unsure || late
			unsure, passes = unsure || want[j].unsure, passes && want[j].allowed
		}
		if unsure && passes != e.allowed {
			passes = e.allowed
		}
		if e.step.n > 0 && e.allowed != passes {
			wrong = append(wrong, h.wrong(e, "allowed is %t, want %t (limits %d, from the store: %t)", e.allowed, passes, e.limits, e.asked))
		}
		for j, m := range ms {
			countDenied := len(ms) == 1 && (rules[h.rule].kind == fixed || rules[h.rule].kind == first || rules[h.rule].kind == punish)
			adds := e.asked && e.step.n > 0 && (e.allowed || countDenied)
			if adds {
				m.add(e.at, e.step.n, int64(e.limits[j]))
			} else if e.step.n > 0 && !e.allowed {
				want[j].left = m.judge(e.at, 0, int64(e.limits[j])).left
			}
			if b, ok := m.(*bucketModel); ok && e.asked && !adds {
				b.refund(e.at, 0, int64(e.limits[j])) // sets the rate at which it drains from now on
			}
			wrong = append(wrong, h.compare(e, &e.statuses[j], &want[j])...)
		}
	}
	return wrong
}

// useful checks that leases deny nothing while a quarter of the limit is free, as long as the limit does not change. It
// skips buckets: unused permits expire there, up to a tenth of the rate, and are missing until the bucket is full.
func (h *history) useful() (wrong []string) {
	if rules[h.rule].kind == bucket {
		return nil
	}
	m := models[rules[h.rule].kind]()
	for i := range h.events {
		e := &h.events[i]
		if e.limits[0] != h.events[0].limits[0] {
			return wrong
		}
		if e.step.n < 0 {
			return wrong
		}
		limit := int64(e.limits[0])
		// With leases, a log keeps hits up to half a second longer, and other windows end by other clocks. In the first
		// second of a clock window the model has already dropped the previous window, but a replica may still count in it.
		begins := rules[h.rule].kind == fixed && e.at.Sub(e.at.Truncate(window)) < time.Second
		free := !begins && m.judge(e.at.Add(-time.Second), e.step.n+limit/4, limit).allowed && m.judge(e.at, e.step.n+limit/4, limit).allowed
		if free && !e.allowed && !e.failed {
			wrong = append(wrong, h.wrong(e, "denied, with a quarter of %d left (from the store: %t)", limit, e.asked))
		}
		// a failed request may have counted
		if e.step.n > 0 && (e.allowed || e.asked && (e.failed || rules[h.rule].kind == fixed)) {
			m.add(e.at, e.step.n, limit)
		}
	}
	return wrong
}

// placed checks each answer about places: who gets one, how many remain, and when the next becomes free.
func (h *history) placed() (wrong []string) {
	taken := make(map[byte]time.Time) // end of each place that is in use
	for i := range h.events {
		e := &h.events[i]
		if !e.asked || e.failed {
			return append(wrong, h.wrong(e, "the store was not asked"))
		}
		for id, until := range taken {
			if !until.After(e.at) {
				delete(taken, id)
			}
		}
		limit, st := int(e.limits[0]), &e.statuses[0]
		if e.step.what == "commit" {
			delete(taken, e.step.id)
			continue
		}
		if len(taken) >= limit {
			var free []time.Time
			for _, until := range taken {
				free = append(free, until)
			}
			slices.SortFunc(free, time.Time.Compare)
			if want := free[len(taken)-limit].Sub(e.at); e.allowed || (st.RetryAfter-want).Abs() > 20*time.Millisecond {
				wrong = append(wrong, h.wrong(e, "allowed is %t, retry after %v; %d of %d places are taken, and one is free in %v", e.allowed, st.RetryAfter, len(taken), limit, want))
			}
			continue
		}
		taken[e.step.id] = e.at.Add(ttl)
		if !e.allowed || st.Remaining != uint64(limit-len(taken)) {
			wrong = append(wrong, h.wrong(e, "allowed is %t, %d left; %d of %d places are taken", e.allowed, st.Remaining, len(taken), limit))
		}
	}
	return wrong
}

// compare checks the status of one descriptor.
func (h *history) compare(e *event, st *limiter.Status, want *answer) (wrong []string) {
	slack := int64(0)
	if want.about {
		slack = 1
	}
	if rules[h.rule].kind == classes {
		if slack = 3; want.unsure {
			return nil
		}
	}
	switch {
	case e.step.n > 0 && !want.unsure && (st.Code == limiter.OK) != want.allowed:
		return []string{h.wrong(e, "%v, want allowed %t", st.Code, want.allowed)}
	case st.Code == limiter.OK && max(int64(st.Remaining)-want.left, want.left-int64(st.Remaining)) > slack:
		return []string{h.wrong(e, "%d left, want %d", st.Remaining, want.left)}
	case st.Code == limiter.OK || want.about || want.unsure || e.step.n == 0:
	case !e.asked && st.RetryAfter >= 0 && want.retry > st.RetryAfter:
		// others have used the counter since the replica heard of it
	case (st.RetryAfter < 0) != (want.retry < 0), (st.RetryAfter - want.retry).Abs() > h.tolerance(e):
		return []string{h.wrong(e, "the same request would pass in %v, want %v (limits %d, from the store: %t)", st.RetryAfter, want.retry, e.limits, e.asked)}
	}
	return nil
}

// tolerance is the error of retry_after. A replica that remembers a denial counts from the time when it heard of it.
func (h *history) tolerance(e *event) time.Duration {
	if e.asked {
		return time.Millisecond
	}
	return 2*h.f.trip + window/500
}

// headers checks that headers and status agree.
func (h *history) headers() (wrong []string) {
	for i := range h.events {
		e := &h.events[i]
		if len(e.statuses) != 1 {
			continue
		}
		st := &e.statuses[0]
		for _, header := range e.headers {
			want := ""
			switch strings.ToLower(header.Key) {
			case "retry-after":
				want = strconv.FormatInt(int64((st.RetryAfter+time.Second-1)/time.Second), 10)
				if header.Value != want {
					wrong = append(wrong, h.wrong(e, "retry-after: %s, want %s", header.Value, want))
				}
			case "ratelimit":
				if want = fmt.Sprintf(";r=%d;", st.Remaining); !strings.Contains(header.Value, want) {
					wrong = append(wrong, h.wrong(e, "RateLimit: %s, want %s", header.Value, want))
				}
			}
		}
	}
	return wrong
}
