package region_test

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// observer knows the true time and what every clock shows. It writes down what was admitted, and judges it by the definitions of
// the algorithms, with code of its own.
type observer struct {
	w       *world
	limits  [][]version // of each counter, by version of the rules
	passed  [][]admission
	grants  [][]moment // what was charged at the home
	pardons [][]pardon
	eras    []era
	answers map[grantID]int64 // permits of each grant

	counts   []counts
	problems []string

	settled int   // version of the rules that all processes of the first home have
	since   int64 // when the last of them read it
	lag     int64 // the longest time from then to a request that an account admitted under a higher limit
}

type version struct {
	limit descriptor.Limit
	until int64 // true time until which a process may use it
}

type grantID struct{ incarnation, number uint64 }

// moment is a number at a true time, with what all clocks show.
type moment struct {
	at    int64
	n     int64
	shown [8]int64 // by region
	local bool
}

type admission = moment

// pardon is how much more may be admitted because a Redis has forgotten something, or because the home's clock was set.
type pardon struct {
	moment
	always bool // in every window of the run
}

// era begins when another region acts as the home for the first time.
type era struct {
	moment
	home  int
	clock bool // or when the clock of the home was set: what was admitted before lies at other times
}

// counts is what callers saw.
type counts struct {
	asked, admitted, full, starved int64
	roomy                          int64 // refused although the limit had room
	waited                         int64
	lastStarved                    int64 // true time
}

func newObserver(w *world) observer {
	o := observer{w: w, answers: make(map[grantID]int64)}
	n := len(w.counters)
	o.passed, o.grants, o.pardons, o.counts = make([][]admission, n), make([][]moment, n), make([][]pardon, n), make([]counts, n)
	for i := range w.counters {
		o.limits = append(o.limits, []version{{w.counters[i].limit, never}})
	}
	return o
}

const never = int64(1)<<62 - 1

func (o *observer) moment(n int64) moment {
	m := moment{at: o.w.Now(), n: n}
	for i, p := range o.w.places {
		m.shown[i] = p.clock.Read(m.at)
	}
	return m
}

// change adds a version of the rules.
func (o *observer) change(counter int, requests uint64) int {
	for i := range o.limits {
		v := o.limits[i][len(o.limits[i])-1]
		if i == counter {
			v.limit.Requests = requests
			if v.limit.Burst > 0 {
				v.limit.Burst = requests
			}
			if err := v.limit.Compile(); err != nil {
				panic(err)
			}
		}
		o.limits[i] = append(o.limits[i], v)
	}
	return len(o.limits[counter]) - 1
}

// changed says that no process uses earlier versions any more.
func (o *observer) changed(_ int, now int) {
	for i := range o.limits {
		for v := range now {
			o.limits[i][v].until = min(o.limits[i][v].until, o.w.Now())
		}
	}
}

// most is the largest limit that was active since a true time.
func (o *observer) most(counter int, since int64) (n int64) {
	for _, v := range o.limits[counter] {
		if v.until >= since {
			n = max(n, int64(v.limit.Capacity()))
		}
	}
	return n
}

// read is called when a process of a region has read rules.
func (o *observer) read(p *place) {
	first := p.replicas[0].version
	if p.index == 0 && first > o.settled && !slices.ContainsFunc(p.replicas, func(r *replica) bool { return r.version != first }) {
		o.settled, o.since = first, o.w.Now()
	}
}

// under is called when an account admits a request.
func (o *observer) under(counter int, a *region.Account) {
	later := slices.ContainsFunc(o.w.places[0].replicas, func(r *replica) bool { return r.version != o.settled })
	if !later && a.Limit > o.limits[counter][o.settled].limit.Requests {
		o.lag = max(o.lag, o.w.Now()-o.since)
	}
}

func (o *observer) admitted(p *place, counter int, hits int64, home bool) {
	if home {
		o.acts(p)
	}
	m := o.moment(hits)
	m.local = home
	o.passed[counter] = append(o.passed[counter], m)
}

func (o *observer) granted(p *place, counter int, a *region.Answer) {
	o.acts(p)
	o.grants[counter] = append(o.grants[counter], o.moment(a.Permits))
	id := grantID{a.Incarnation, a.Number}
	o.answers[id] = max(o.answers[id], a.Permits)
}

func (o *observer) acts(p *place) {
	if n := len(o.eras); n == 0 || o.eras[n-1].home != p.index {
		o.eras = append(o.eras, era{moment: o.moment(0), home: p.index})
	}
}

// steps: a clock was set. That of a home decides which window it is. A bucket is refilled when the clock of its region is set forward.
func (o *observer) steps(p *place, by int64) {
	for i := range o.w.counters {
		if o.w.counters[i].mode == "share" && by > 0 {
			m := o.moment(p.kept.holdings[i].Tokens)
			o.pardons[i] = append(o.pardons[i], pardon{m, false})
		}
	}
	if n := len(o.eras); n > 0 && o.eras[n-1].home == p.index {
		o.eras = append(o.eras, era{o.moment(0), p.index, true})
	}
	for _, e := range o.w.epochs {
		if e.Home == p.name {
			for i := range o.pardons {
				o.pardons[i] = append(o.pardons[i], pardon{o.moment(o.most(i, 0)), true})
			}
			return
		}
	}
}

// forgets: a Redis continues with what it held earlier.
func (o *observer) forgets(p *place, then *kept) {
	for i := range o.w.counters {
		n := o.forgottenByAccount(p.kept.account(i, p.clock.Read(o.w.Now())), then.account(i, p.clock.Read(o.w.Now())))
		if now := &p.kept.counters[i]; now.Epoch > 0 {
			if then.at == 0 {
				n += o.most(i, 0)
			}
			for _, all := range [][]moment{o.grants[i], o.passed[i]} {
				for k := len(all) - 1; k >= 0 && all[k].at >= then.at && then.at > 0; k-- {
					n += all[k].n
				}
			}
			for _, peer := range now.Peers {
				for _, g := range peer.Grants { // what the home has heard of them
					n += g.Used + g.Returned
				}
			}
			for _, peer := range then.counters[i].Peers {
				for _, g := range peer.Grants {
					n += g.Permits - g.Used - g.Returned
				}
			}
		}
		if o.w.counters[i].mode == "share" {
			n = o.forgottenShare(i, p, then)
		}
		if n > 0 {
			o.pardons[i] = append(o.pardons[i], pardon{o.moment(n), false})
		}
	}
}

// forgottenShare is how much a part may admit that it had given up, or had used already.
func (o *observer) forgottenShare(i int, p *place, then *kept) (n int64) {
	l := &o.w.counters[i].limit
	life := 32 * sec
	if now, was := &p.kept.holdings[i], &then.holdings[i]; was.Incarnation != 0 {
		n += was.Tokens + (was.Rate*life)/l.Window.Length().Microseconds()
		_ = now
	}
	if p.kept.shares[i].Begun {
		// The home may give everything away a second time, while others still have it.
		n += int64(l.Capacity()) + int64(l.Requests)*life/l.Window.Length().Microseconds()
	}
	return n
}

// forgottenByAccount is how many permits come back that were used or returned. A grant that was settled since had none left.
func (o *observer) forgottenByAccount(now, then *region.Account) (n int64) {
	if then.Incarnation == 0 {
		return 0 // it begins with nothing
	}
	for _, g := range then.Grants {
		n += g.Permits - g.Used - g.Returned
		for _, x := range now.Grants {
			if x.Incarnation == g.Incarnation && x.Number == g.Number {
				n -= x.Permits - x.Used - x.Returned
			}
		}
	}
	if q := (grantID{then.Incarnation, then.Question.Number}); then.Waiting { // the answer may arrive again
		n += o.answers[q]
		for _, x := range now.Grants {
			if q == (grantID{x.Incarnation, x.Number}) {
				n -= x.Permits - x.Used - x.Returned
			}
		}
	}
	return max(n, 0)
}

// answered: a caller has its answer.
func (o *observer) answered(r *replica, q *request, allowed, starved bool) {
	if q.done {
		return
	}
	q.done = true
	c := &o.counts[q.counter]
	c.asked++
	if q.waited {
		c.waited++
	}
	switch {
	case allowed:
		c.admitted++
		return
	case starved:
		c.starved++
		c.lastStarved = o.w.Now()
	default:
		c.full++
	}
	if o.room(q.counter) >= q.hits {
		c.roomy++
	}
}

// room is how many hits of a window on the clock are not used at this moment. Other limits: 0.
func (o *observer) room(counter int) int64 {
	l := &o.limits[counter][len(o.limits[counter])-1].limit
	if l.Algorithm != descriptor.FixedWindow || l.FirstHit || len(o.eras) == 0 {
		return 0
	}
	home := o.eras[len(o.eras)-1].home
	start := windowOf(l, o.moment(0).shown[home])
	n := int64(l.Requests)
	all := o.passed[counter]
	for i := len(all) - 1; i >= 0 && all[i].shown[home] >= start; i-- {
		n -= all[i].n
	}
	return n
}

func windowOf(l *descriptor.Limit, shown int64) int64 {
	length := l.Window.Length().Microseconds()
	if l.Window.Location != nil {
		length = 24 * 60 * minute // the only calendar here: days in UTC
	}
	return shown / length * length
}

func (o *observer) problem(format string, args ...any) {
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

// end judges the run.
func (o *observer) end() {
	for i := range o.w.counters {
		if o.w.counters[i].mode == "share" || !o.w.counters[i].limit.Windowed() && !o.w.counters[i].limit.Interval {
			o.judgeBucket(i)
			continue
		}
		for k := range o.eras {
			o.judge(i, k)
		}
	}
}

func (o *observer) judge(counter, index int) {
	e := o.eras[index]
	until := never
	if index+1 < len(o.eras) {
		until = o.eras[index+1].at
	}
	l := &o.limits[counter][0].limit
	shown := func(m *moment) int64 { return m.shown[e.home] }
	all := o.passed[counter]
	length := l.Window.Length().Microseconds()
	check := func(used int64, from, to int64, since int64, what string) {
		allowed := o.most(counter, since)
		for _, p := range o.pardons[counter] {
			if p.always || shown(&p.moment) >= from && shown(&p.moment) <= to {
				allowed += p.n
			}
		}
		if used > allowed {
			o.problem("counter %d (%s): %d admitted in %s, %d is the most, home %d, clock %d", counter, o.w.counters[counter].name, used, what, allowed, e.home, to)
		}
	}
	switch {
	case l.Interval:
		o.judgeInterval(counter, e, until)
	case l.Algorithm == descriptor.FixedWindow && !l.FirstHit:
		first := windowOf(l, e.shown[e.home])
		used, start, since := int64(0), int64(-1), int64(0)
		for i := range all {
			m := &all[i]
			if index > 0 && shown(m) < first || m.at >= until || e.clock && m.at < e.at {
				continue
			}
			if w := windowOf(l, shown(m)); w > start {
				used, start, since = 0, w, m.at
			}
			used += m.n
			end := start + length
			if l.Window.Location != nil {
				end = start + 24*60*minute
			}
			check(used, start, end, since, "a window")
		}
	default:
		// The others look back from each admission.
		if e.clock {
			all = all[sort.Search(len(all), func(i int) bool { return all[i].at >= e.at }):]
		}
		for i := range all {
			m := &all[i]
			if m.at < e.at && index > 0 || m.at >= until {
				continue
			}
			now := shown(m)
			switch l.Algorithm {
			case descriptor.SlidingLog:
				used := int64(0)
				for k := i; k >= 0 && shown(&all[k]) > now-length; k-- {
					used += all[k].n
				}
				check(used, now-length-10*sec, now, m.at-length, "a sliding log")
			case descriptor.SlidingWindow:
				n := int64(max(l.Precision, 1))
				sub := length / n
				full, oldest := int64(0), int64(0)
				current := now / sub
				for k := i; k >= 0; k-- {
					age := current - shown(&all[k])/sub
					if age > n {
						break
					}
					if age < n {
						full += all[k].n
					} else {
						oldest += all[k].n
					}
				}
				// what is left of the oldest part is rounded down
				used := full + oldest*(sub-now%sub)/sub
				check(used, now-length-sub, now, m.at-length-sub, "a sliding window")
			default: // windows begin with a hit: any span of a window lies in two of them
				used := int64(0)
				for k := i; k >= 0 && shown(&all[k]) > now-length; k-- {
					used += all[k].n
				}
				check(used-o.most(counter, m.at-2*length), now-2*length, now, m.at-2*length, "a window from the first hit")
			}
		}
	}
}

// judgeInterval fills a bucket at each boundary and empties it by what was admitted.
func (o *observer) judgeInterval(counter int, e era, until int64) {
	l := &o.limits[counter][0].limit
	length := l.Window.Length().Microseconds()
	allowed := int64(0)
	for _, p := range o.pardons[counter] {
		allowed += p.n
	}
	if l.FirstHit {
		o.judgeRefills(counter, e, until, allowed)
		return
	}
	level, interval := o.most(counter, 0), e.shown[e.home]/length
	for _, m := range o.passed[counter] {
		if m.at < e.at || m.at >= until {
			continue
		}
		if now := m.shown[e.home] / length; now > interval {
			refill := int64(0)
			for _, v := range o.limits[counter] {
				if v.until >= m.at-length {
					refill = max(refill, int64(v.limit.Requests))
				}
			}
			level = min(level+(now-interval)*refill, o.most(counter, m.at-length))
			interval = now
		}
		if level -= m.n; level < -allowed {
			o.problem("counter %d (%s): %d more than its tokens were admitted, %d are allowed", counter, o.w.counters[counter].name, -level, allowed)
		}
	}
}

// conserved compares what the home of a window on the clock has counted with what was used and can still be used.
func (o *observer) conserved(counter int) {
	l := &o.limits[counter][0].limit
	if l.Algorithm != descriptor.FixedWindow || l.FirstHit || len(o.eras) == 0 || len(o.pardons[counter]) > 0 {
		return
	}
	e := o.eras[len(o.eras)-1]
	home := o.w.places[e.home]
	now := o.moment(0)
	start := windowOf(l, now.shown[e.home])
	if start <= windowOf(l, e.shown[e.home]) && len(o.eras) > 1 {
		return // it was full when this home began
	}
	used, held := int64(0), int64(0)
	for _, m := range slices.Backward(o.passed[counter]) {
		if m.shown[e.home] < start {
			break
		}
		used += m.n
	}
	for _, p := range o.w.places {
		a := p.kept.account(counter, p.clock.Read(now.at))
		for _, g := range a.Grants {
			if g.Expires > p.clock.Read(now.at) {
				held += g.Permits - g.Used - g.Returned
			}
		}
	}
	s := &home.kept.counters[counter].State
	count := int64(0)
	if s.Start == start {
		count = s.Count
	}
	if count < used+held {
		o.problem("counter %d (%s): the home has counted %d, but %d are used and %d are held", counter, o.w.counters[counter].name, count, used, held)
	}
}

// judgeBucket fills a bucket by the true time, a little faster than the limit says because clocks may, and empties it by what was
// admitted. It returns the most that was admitted beyond the rate.
func (o *observer) judgeBucket(counter int) (worst int64) {
	l := &o.limits[counter][0].limit
	length := float64(l.Window.Length().Microseconds())
	level, last, forgiven := float64(o.most(counter, 0)), int64(0), 0
	for _, m := range o.passed[counter] {
		for ; forgiven < len(o.pardons[counter]) && o.pardons[counter][forgiven].at <= m.at; forgiven++ {
			level += float64(o.pardons[counter][forgiven].n)
		}
		rate := 0.0
		for _, v := range o.limits[counter] {
			if v.until >= m.at-40*sec { // a part lasts until it expires
				rate = max(rate, float64(v.limit.Requests))
			}
		}
		most := float64(o.most(counter, m.at-40*sec))
		if refilled := level + float64(m.at-last)*rate*1.0021/length; level < most {
			level = min(refilled, most)
		}
		last = m.at
		level -= float64(m.n)
		worst = max(worst, int64(math.Floor(most-level)))
		if level < -1 {
			o.problem("counter %d (%s): %.1f more than its tokens were admitted at %d", counter, o.w.counters[counter].name, -level, m.at)
			return worst
		}
	}
	return worst
}

// judgeRefills looks back from each admission to a bucket whose intervals begin with a hit: a span of some intervals has one refill more
// than that at most.
func (o *observer) judgeRefills(counter int, e era, until, allowed int64) {
	l := &o.limits[counter][0].limit
	length := l.Window.Length().Microseconds()
	refill := int64(0)
	for _, v := range o.limits[counter] {
		refill = max(refill, int64(v.limit.Requests))
	}
	all := o.passed[counter]
	for i := range all {
		now := all[i].shown[e.home]
		used := int64(0)
		for k := i; k >= 0 && all[k].at >= e.at && all[i].at < until && all[k].shown[e.home] > now-4*length; k-- {
			used += all[k].n
			refills := (now-all[k].shown[e.home])/length + 1
			if used > o.most(counter, 0)+refills*refill+allowed {
				o.problem("counter %d (%s): %d admitted in %d refills", counter, o.w.counters[counter].name, used, refills)
				return
			}
		}
	}
}
