package backendtest

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// SoakNumbers sends that many random takes to a store: of limits with up to 2^53 - 1 requests, windows from
// milliseconds to years, on the clock and on calendars, with multipliers and both kinds of weeks. It compares each
// outcome with a plain model.
func SoakNumbers(t testing.TB, s backend.Starter, steps int64, seed uint64) {
	t.Logf("seed %d", seed)
	n := numbers{random: rand.New(rand.NewPCG(seed, 0)), kinds: make(map[string]int)}
	for done := int64(0); done < steps && !t.Failed(); done += n.batch(t, s) {
	}
	t.Logf("%d denied, %d of more than 32 bits, %d in milliseconds, %d on a calendar with a multiplier, %d in weeks "+
		"from Sunday",
		n.kinds["denied"], n.kinds["large"], n.kinds["millisecond"], n.kinds["multiplier"], n.kinds["sunday"])
	for _, kind := range []string{"denied", "large", "millisecond", "multiplier", "sunday"} {
		if n.kinds[kind] == 0 {
			t.Errorf("no take is %s", kind)
		}
	}
}

type numbers struct {
	random *rand.Rand
	kinds  map[string]int // how many takes there were of each
}

type numbered struct {
	key   []byte
	model *plain
}

// batch makes some takes of a few counters, and returns how many. Counters in Redis expire by its own clock, so they
// are used for a moment only.
func (n *numbers) batch(t testing.TB, s backend.Starter) (takes int64) {
	r := n.random
	scale := scales[r.IntN(len(scales))]
	prefix := newCase()
	counters := make([]numbered, 6)
	for i := range counters {
		l := n.limit(t, scale.units)
		counters[i] = numbered{key(prefix, fmt.Sprint(i), l), newPlain(l)}
	}
	now, waits := epoch.UnixMicro()+r.Int64N(scale.span.Microseconds()), []time.Duration{0}
	for range 30 {
		switch r.IntN(4) {
		case 0:
			now += r.Int64N(1000)
		case 1:
			now += r.Int64N(scale.span.Microseconds() / 100)
		case 2: // when an outcome said that something happens, or a microsecond earlier
			now += max(0, waits[r.IntN(len(waits))].Microseconds()-r.Int64N(2))
		}
		waits = append(waits[:0], 0)
		request := &backend.Request{}
		var of []*plain
		for member := range 1 + r.IntN(10) {
			c := &counters[r.IntN(len(counters))]
			request.Takes = append(request.Takes, backend.Take{
				Key: c.key, Limit: c.model.limit, Hits: n.hits(c.model, now), CountDenied: r.IntN(2) == 0, Member: member,
			})
			of = append(of, c.model)
		}
		request.Outcomes = make([]backend.Outcome, len(of))
		if err := backend.Await(context.Background(), s, time.UnixMicro(now), request); err != nil {
			t.Fatal(err)
		}
		for i, m := range of {
			take := &request.Takes[i]
			want := m.take(now, take.Hits, take.CountDenied)
			if got := request.Outcomes[i]; got != want {
				t.Errorf("take %d at %d: %s, count_denied %v\n got  %s\n want %s", i, now, takeText(take), take.CountDenied,
					outcomeText(&got), outcomeText(&want))
				return takes
			}
			n.count(m.limit, &want)
			for _, wait := range []time.Duration{want.RetryAfter, want.ResetAfter} {
				if wait > 0 && now+wait.Microseconds() < epoch.Add(2*scale.span).UnixMicro() {
					waits = append(waits, wait)
				}
			}
		}
		takes += int64(len(of))
	}
	return takes
}

func (n *numbers) count(l *descriptor.Limit, o *backend.Outcome) {
	for kind, is := range map[string]bool{
		"denied": !o.Allowed, "large": l.Requests > math.MaxUint32, "millisecond": l.Window.Unit == descriptor.Millisecond,
		"multiplier": l.Window.Location != nil && l.Window.Multiplier > 1, "sunday": l.Window.WeekStart == 6,
	} {
		if is {
			n.kinds[kind]++
		}
	}
}

// hits draws a number of hits: peeks, refunds, and numbers around those that still fit.
func (n *numbers) hits(m *plain, now int64) int64 {
	r := n.random
	used, capacity := m.used(now).Int64(), int64(m.limit.Capacity())
	room := max(0, capacity-used)
	hits := []int64{0, 1, 2, room, room + 1, room / 2, room/2 + 1, capacity, capacity + 1, -1, -used, -used - 1, -used / 2,
		r.Int64N(capacity + 2), backend.MaxHits, -backend.MaxHits}[r.IntN(16)]
	if m.limit.Algorithm == descriptor.SlidingLog {
		hits = min(hits, 2*capacity+1)
	}
	return min(max(hits, -backend.MaxHits), backend.MaxHits)
}

// limit draws a limit that compiles.
func (n *numbers) limit(t testing.TB, units []descriptor.Unit) *descriptor.Limit {
	r := n.random
	number := func() uint64 {
		switch r.IntN(4) {
		case 0:
			return large[r.IntN(len(large))]
		case 1: // round numbers
			return 1 + r.Uint64N(1000)*uint64(math.Pow10(r.IntN(13)))
		default: // all numbers of digits, equally often
			return 1 + r.Uint64()>>(11+r.IntN(53))
		}
	}
	for range 10_000 {
		l := &descriptor.Limit{
			Requests: min(number(), descriptor.MaxRequests),
			Algorithm: []descriptor.Algorithm{descriptor.FixedWindow, descriptor.FixedWindow, descriptor.SlidingWindow,
				descriptor.SlidingLog, descriptor.TokenBucket, descriptor.LeakyBucket}[r.IntN(6)],
			Window: descriptor.Window{Unit: units[r.IntN(len(units))], Multiplier: uint32(r.IntN(5))},
		}
		// a counter outlives its window by 2,000 windows: time enough for a batch
		if l.Window.Unit == descriptor.Millisecond {
			l.Window.Multiplier = 20 + uint32(r.IntN(2000))
		}
		switch l.Algorithm {
		case descriptor.FixedWindow:
			if l.FirstHit = r.IntN(3) == 0; !l.FirstHit && l.Window.Unit.Length() >= descriptor.Day.Length() && r.IntN(3) > 0 {
				var err error
				if l.Window.Location, err = time.LoadLocation([]string{"UTC", "Asia/Seoul",
					"America/New_York"}[r.IntN(3)]); err != nil {
					t.Fatal(err)
				}
				if l.Window.Unit == descriptor.Week {
					l.Window.WeekStart = uint8(6 * r.IntN(2))
				}
			}
		case descriptor.SlidingWindow:
			l.Precision = []uint32{0, 1, 2, 4, 10}[r.IntN(5)]
		case descriptor.SlidingLog:
			l.Requests = 1 + l.Requests%30
		case descriptor.TokenBucket:
			l.Interval = r.IntN(2) == 0
			l.FirstHit = l.Interval && r.IntN(2) == 0
			l.Burst = min([]uint64{l.Requests, l.Requests * 3 / 2, number()}[r.IntN(3)], descriptor.MaxRequests)
		case descriptor.LeakyBucket:
			l.Burst = min([]uint64{l.Requests, 0, number()}[r.IntN(3)], descriptor.MaxRequests)
			l.NoDelay = []uint32{0, 1, uint32(bits.Len64(l.Burst)), descriptor.NoDelayAll}[r.IntN(4)]
		}
		if l.Compile() == nil {
			return l
		}
	}
	t.Fatal("no limit compiles")
	return nil
}
