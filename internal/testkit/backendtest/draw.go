package backendtest

import (
	"math"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

var zones = []string{"UTC", "Asia/Seoul", "America/New_York", "Australia/Lord_Howe", "America/Santiago"}

var units = []descriptor.Unit{
	descriptor.Millisecond, descriptor.Second, descriptor.Minute, descriptor.Hour, descriptor.Day, descriptor.Week,
	descriptor.Month, descriptor.Year,
}

// DrawLimit draws a limit of any algorithm that compiles.
func DrawLimit(t *rapid.T) *descriptor.Limit {
	return drawLimit(t, units)
}

// drawSmall draws a limit that a test reaches with a few takes: its capacity is at most 30.
func drawSmall(t *rapid.T, units []descriptor.Unit) *descriptor.Limit {
	return rapid.Custom(func(t *rapid.T) *descriptor.Limit {
		l := drawLimit(t, units)
		if l.Capacity() > 20 {
			l.Burst, l.Requests = min(l.Burst, 15), min(l.Requests, 15)
		}
		return l
	}).Filter(func(l *descriptor.Limit) bool { return l.Compile() == nil }).Draw(t, "small limit")
}

func drawLimit(t *rapid.T, units []descriptor.Unit) *descriptor.Limit {
	return rapid.Custom(func(t *rapid.T) *descriptor.Limit {
		l := &descriptor.Limit{
			Requests:  drawRequests(t, "requests"),
			Algorithm: descriptor.Algorithm(rapid.IntRange(0, len(descriptor.AlgorithmNames)-1).Draw(t, "algorithm")),
			Window: descriptor.Window{
				Unit:       rapid.SampledFrom(units).Draw(t, "unit"),
				Multiplier: rapid.SampledFrom([]uint32{0, 1, 3, 7}).Draw(t, "multiplier"),
			},
		}
		if l.Window.Unit == descriptor.Millisecond { // a counter outlives its window by 2,000 windows: time enough for a test
			l.Window.Multiplier = rapid.SampledFrom([]uint32{20, 50, 125, 1500}).Draw(t, "milliseconds")
		}
		switch l.Algorithm {
		case descriptor.FixedWindow:
			l.FirstHit = rapid.Bool().Draw(t, "first_hit")
			if !l.FirstHit && l.Window.Unit.Length() >= descriptor.Day.Length() && rapid.Bool().Draw(t, "calendar") {
				zone, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(t, "zone"))
				if err != nil {
					t.Fatal(err)
				}
				l.Window.Location, l.Window.Multiplier = zone, rapid.SampledFrom([]uint32{1, 1, 2, 3}).Draw(t,
					"calendar multiplier")
				if l.Window.Unit == descriptor.Week {
					l.Window.WeekStart = rapid.SampledFrom([]uint8{0, 6}).Draw(t, "week start")
				}
			}
			if !l.FirstHit && rapid.IntRange(0, 2).Draw(t, "shared") == 0 {
				drawClasses(t, l)
			}
		case descriptor.SlidingWindow:
			l.Precision = rapid.SampledFrom([]uint32{0, 1, 2, 3, 4, 5, 12}).Draw(t, "precision")
		case descriptor.TokenBucket:
			l.Interval = rapid.Bool().Draw(t, "interval")
			l.FirstHit = l.Interval && rapid.Bool().Draw(t, "first_hit")
			l.Burst = drawRequests(t, "burst")
		case descriptor.LeakyBucket:
			l.Burst = drawRequests(t, "burst")
			l.NoDelay = rapid.SampledFrom([]uint32{0, 1, 3, descriptor.NoDelayAll}).Draw(t, "nodelay")
		}
		return l
	}).Filter(func(l *descriptor.Limit) bool { return l.Compile() == nil }).Draw(t, "limit")
}

// drawClasses makes a limit one that classes share, and draws the class of the customer.
func drawClasses(t *rapid.T, l *descriptor.Limit) {
	l.Algorithm, l.Classes = descriptor.SharedWindow, descriptor.ClassParts{Names: rapid.SampledFrom([]uint8{0, 7,
		255}).Draw(t, "names")}
	left := uint8(100)
	n := rapid.IntRange(1, descriptor.MaxClasses).Draw(t, "classes")
	for i := 0; i < n && left > 0; i++ {
		l.Classes.Percent[i] = rapid.Uint8Range(1, left).Draw(t, "percent")
		left -= l.Classes.Percent[i]
	}
	drawClass(t, l)
}

// drawClass draws the class of the customer.
func drawClass(t *rapid.T, l *descriptor.Limit) {
	n := uint8(0)
	for n < descriptor.MaxClasses && l.Classes.Percent[n] > 0 {
		n++
	}
	l.Classes.Class = rapid.Uint8Range(0, n).Draw(t, "class")
}

func drawRequests(t *rapid.T, name string) uint64 {
	return rapid.OneOf(
		rapid.Uint64Range(1, 12), rapid.Uint64Range(0, 6),
		rapid.SampledFrom([]uint64{97, 100, 1000, 45_678, 999_999, 12_345_678, math.MaxUint32 - 1, math.MaxUint32}),
		rapid.SampledFrom(large),
	).Draw(t, name)
}

// drawLarge draws a limit of more than 32 bits. A bucket may hold fewer: there are more such limits if its rate has
// zeros at its end.
func drawLarge(t *rapid.T) *descriptor.Limit {
	return rapid.Custom(func(t *rapid.T) *descriptor.Limit {
		l := drawLimit(t, units)
		l.Requests = rapid.OneOf(rapid.SampledFrom(large), rapid.Uint64Range(1<<32, descriptor.MaxRequests)).Draw(t, "large")
		if l.Has(descriptor.SettingBurst) {
			l.Requests = rapid.SampledFrom([]uint64{5_000_000_000, 1_000_000_000_000, 1 << 45, 3 << 40, l.Requests}).Draw(t,
				"large rate")
			l.Burst = rapid.OneOf(rapid.Just(l.Requests), rapid.Just(3*l.Requests/2), rapid.Uint64Range(1, 1<<45)).Draw(t,
				"large burst")
			l.Burst = min(l.Burst, descriptor.MaxRequests)
		}
		return l
	}).Filter(func(l *descriptor.Limit) bool { return l.Compile() == nil }).Draw(t, "large limit")
}

// large are numbers with more than 32 bits: near the numbers at which the form of a counter changes or a double stops
// being exact.
var large = []uint64{
	1 << 32, 5_000_000_000, 1<<40 - 1, 1 << 40, 1_000_000_000_000, 4_000_000_000_001, 1<<45 + 1, 1<<51 - 1, 1 << 52,
	descriptor.MaxRequests - 1, descriptor.MaxRequests,
}
