package backend

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// everyVariant returns a compiled limit for each variant of an algorithm.
func everyVariant(t *testing.T, a descriptor.Algorithm) []descriptor.Limit {
	t.Helper()
	plain := descriptor.Limit{Algorithm: a, Requests: 10, Burst: 10, Window: descriptor.Window{Unit: descriptor.Day}}
	all := []descriptor.Limit{plain}
	add := func(s descriptor.Setting, change func(*descriptor.Limit)) {
		for _, l := range slices.Clone(all) {
			if l.Has(s) && !l.FirstHit { // windows from the first hit have no calendar
				change(&l)
				all = append(all, l)
			}
		}
	}
	add(descriptor.SettingRefill, func(l *descriptor.Limit) { l.Interval = true })
	add(descriptor.SettingAlign, func(l *descriptor.Limit) { l.FirstHit = true })
	add(descriptor.SettingCalendar, func(l *descriptor.Limit) { l.Window.Location = time.UTC })
	add(descriptor.SettingPrecision, func(l *descriptor.Limit) { l.Precision = 4 })
	add(descriptor.SettingNoDelay, func(l *descriptor.Limit) { l.NoDelay = descriptor.NoDelayAll })
	for i := range all {
		if err := all[i].Compile(); err != nil {
			t.Fatalf("%s: %v", all[i].Words(), err)
		}
	}
	return all
}

// Every variant of every algorithm has all that a store needs: a row here and in package descriptor, a form in Redis,
// and a script.
func TestEveryAlgorithmIsComplete(t *testing.T) {
	if len(algorithms) != len(descriptor.AlgorithmNames)+2 { // two without a name: descriptor.Penalties and SharedWindow
		t.Fatalf("%d algorithms, package descriptor has %q", len(algorithms), descriptor.AlgorithmNames)
	}
	words, now := make(map[string]bool), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for a, row := range algorithms {
		if row == nil {
			t.Fatalf("%v has no row", descriptor.Algorithm(a))
		}
		if descriptor.Algorithm(a) == descriptor.Penalties {
			continue // penalties_test.go
		}
		for _, l := range everyVariant(t, descriptor.Algorithm(a)) {
			what := l.Words()
			if words[what] {
				t.Errorf("two limits are described as %q", what)
			}
			words[what] = true

			var s State
			o := Peek(&Take{Limit: &l, Hits: 1}, &s, now)
			if !o.Allowed || o.Used != 0 || !s.Unused() {
				t.Errorf("%s: the first hit: %+v, and the state is %+v", what, o, s)
			}
			settle := func(hits int64) Outcome {
				var out [1]Outcome
				Settle([]Take{{Limit: &l, Hits: hits}}, []*State{&s}, out[:], At(now))
				return out[0]
			}
			capacity := int64(l.Capacity())
			if o = settle(capacity); !o.Allowed || o.Used != capacity || s.Unused() || Expires(&l, &s) <= now {
				t.Errorf("%s: all hits: %+v, and the state is %+v", what, o, s)
			}
			if o = settle(1); o.Allowed || o.RetryAfter <= 0 {
				t.Errorf("%s: one more: %+v", what, o)
			}
			if n := len(s.Tail); n > Entries(&l) {
				t.Errorf("%s: %d entries, at most %d", what, n, Entries(&l))
			}
			if kind := PermitsOf(&Take{Limit: &l}).Kind; kind == PermitsOfWindow && Boundary(&l, &o) <= 0 {
				t.Errorf("%s: a permit has no end: %+v", what, o)
			}
			checkForm(t, what, &l, RedisFormOf(&l), now)
		}
	}
	fixed := &everyVariant(t, descriptor.FixedWindow)[0]
	checkForm(t, "envoyproxy/ratelimit's keys", fixed, &LyftForm, now)
}

func checkForm(t *testing.T, what string, l *descriptor.Limit, f *RedisForm, now int64) {
	t.Helper()
	if f.Parameters == nil || f.Room == nil || f.decode == nil || f.least <= 0 {
		t.Fatalf("%s: the form in Redis is not complete: %+v", what, f)
	}
	if p1, _, _ := f.Parameters(l, now, int(l.Requests)); p1 <= 0 {
		t.Errorf("%s: the script has no parameters", what)
	}
	if room := f.Room(l, int(l.Requests)); room < f.least {
		t.Errorf("%s: the reply has room for %d bytes, a state has %d or more", what, room, f.least)
	}
	if s, _ := f.Decode(nil, l, now, nil); !s.Unused() {
		t.Errorf("%s: nothing is read as %+v", what, s)
	}
	for _, script := range []*scripts.Script{scripts.One(f.Shape), scripts.Each(scripts.Of(f.Shape)), scripts.Many(scripts.Of(f.Shape))} {
		for _, function := range []string{"read", "try", "write"} {
			if !bytes.Contains([]byte(script.Text), []byte("local function "+function+"(")) {
				t.Errorf("%s: the script has no function %s", what, function)
			}
		}
	}
}
