package limiter_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// own is a header whose value is a text and a field, in turn.
func own(name string, parts ...any) descriptor.OwnHeader {
	h := descriptor.OwnHeader{Name: name}
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			h.Text = append(h.Text, descriptor.HeaderPart{Text: p})
		case descriptor.HeaderField:
			if n := len(h.Text); n == 0 || h.Text[n-1].Field != 0 {
				h.Text = append(h.Text, descriptor.HeaderPart{})
			}
			h.Text[len(h.Text)-1].Field = p
		}
	}
	return h
}

func of(limit string, h descriptor.OwnHeader) descriptor.OwnHeader {
	h.Of = strings.Split(limit, "|")
	return h
}

func when(w descriptor.HeaderWhen, h descriptor.OwnHeader) descriptor.OwnHeader {
	h.When = w
	return h
}

// everyField has a header for each field.
func everyField() []descriptor.OwnHeader {
	var all []descriptor.OwnHeader
	for f := descriptor.FieldLimit; f <= descriptor.FieldRetryAfter; f++ {
		all = append(all, own(descriptor.HeaderFieldNames[f], f))
	}
	return all
}

func withHeaders(t *testing.T, store backend.Store, s limiter.Settings, own []descriptor.OwnHeader, nodes ...descriptor.NodeSpec) *fixture {
	t.Helper()
	f := newFixtureOn(t, store, s)
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Headers: &descriptor.Headers{Own: own}}, Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.Swap(tree, s)
	return f
}

// wants decides one hit of each descriptor and compares the headers, written as name, value, name, value.
func (f *fixture) wants(code limiter.Code, descriptors []limiter.Descriptor, want ...string) {
	f.t.Helper()
	d := f.decide(&limiter.Request{Domain: "d", Descriptors: descriptors})
	var got []string
	for _, h := range d.Headers {
		got = append(got, h.Key, h.Value)
	}
	if d.Code != code || !slices.Equal(got, want) {
		f.t.Errorf("got %s %q\nwant %s %q", d.Code, got, code, want)
	}
}

func of1(pairs ...string) []limiter.Descriptor { return []limiter.Descriptor{amount(1, pairs...)} }

func TestFieldsOfOwnHeaders(t *testing.T) {
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, everyField(),
		perMinute("k", "", 2, func(r *descriptor.Rule) { r.Name = "two" }),
		bucket("bucket", 2, 39), inFlight("places", 1))
	f.now = noon.Add(5500 * time.Millisecond)
	end := "1773144060" // 12:01
	f.wants(limiter.OK, of1("k=a"), "limit", "2", "capacity", "2", "used", "1", "used_percent", "50", "remaining", "1", "reset", "45", "reset_unix", end, "window", "60", "name", "two")
	f.wants(limiter.OK, of1("k=a"), "limit", "2", "capacity", "2", "used", "2", "used_percent", "100", "remaining", "0", "reset", "45", "reset_unix", end, "window", "60", "name", "two")
	f.wants(limiter.OverLimit, of1("k=a"), "limit", "2", "capacity", "2", "used", "2", "used_percent", "100", "remaining", "0", "reset", "45", "reset_unix", end, "window", "60", "name", "two", "retry_after", "45")
	// A bucket has a size next to its rate.
	f.wants(limiter.OK, []limiter.Descriptor{amount(32, "bucket=a")}, "limit", "2", "capacity", "40", "used", "32", "used_percent", "80", "remaining", "8", "reset", "16", "reset_unix", "1773144032", "window", "1")
	// A concurrency limit has no window. Without a name, the field is left out.
	f.wants(limiter.OK, of1("places=a"), "limit", "1", "capacity", "1", "used", "1", "used_percent", "100", "remaining", "0", "reset", "60", "reset_unix", "1773144076")
	f.wants(limiter.OK, of1("none=a"))
}

// bucket is a leaky bucket in which nothing waits.
func bucket(key string, perSecond, burst uint64) descriptor.NodeSpec {
	n := perMinute(key, "", perSecond)
	n.Rule.Limits[0] = descriptor.Limit{Requests: perSecond, Window: descriptor.Window{Unit: descriptor.Second}, Algorithm: descriptor.LeakyBucket, Burst: burst, NoDelay: descriptor.NoDelayAll}
	return n
}

// The headers describe the limit that all headers describe, or the one that they name; in answers of one kind, or of
// both.
func TestWhichOwnHeaders(t *testing.T) {
	called := func(name string) func(*descriptor.Rule) { return func(r *descriptor.Rule) { r.Name = name } }
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, []descriptor.OwnHeader{
		own("Left", descriptor.FieldRemaining, " of ", descriptor.FieldLimit),
		when(descriptor.HeaderPassed, own("Went", "well")),
		when(descriptor.HeaderDenied, own("Reason", descriptor.FieldName, "-rate")),
		of("wide", own("Wide", descriptor.FieldUsed, "/", descriptor.FieldCapacity)),
		of("nobody", own("Nobody", "x")),
		of("other|wide", own("Either", descriptor.FieldName)),
	}, perMinute("wide", "", 10, called("wide")), perMinute("narrow", "", 1, called("ümlaut\r\nx: y")))
	both := []limiter.Descriptor{amount(1, "wide=a"), amount(1, "narrow=a")}
	f.wants(limiter.OK, both, "Left", "0 of 1", "Went", "well", "Wide", "1/10", "Either", "wide")
	f.wants(limiter.OverLimit, both, "Left", "0 of 1", "Reason", "%C3%BCmlaut%0D%0Ax: y-rate", "Wide", "2/10", "Either", "wide")
	f.wants(limiter.OK, of1("wide=b"), "Left", "9 of 10", "Went", "well", "Wide", "1/10", "Either", "wide")
	f.wants(limiter.OK, of1("narrow=b"), "Left", "0 of 1", "Went", "well")
	// Of two limits with that name, the header shows the one with fewer remaining hits.
	f.wants(limiter.OK, []limiter.Descriptor{amount(1, "wide=a"), amount(1, "wide=b")}, "Left", "7 of 10", "Went", "well", "Wide", "3/10", "Either", "wide")
}

// A shadow rule never shows. Where everything is in shadow mode, no answer is a denial.
func TestOwnHeadersShowNoShadow(t *testing.T) {
	hidden := func(r *descriptor.Rule) { r.Shadow, r.Name = true, "s" }
	three := []descriptor.OwnHeader{own("L", descriptor.FieldLimit), of("s", own("S", descriptor.FieldLimit)), when(descriptor.HeaderDenied, own("R", "x")), own("A", descriptor.FieldRetryAfter)}
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, three, perMinute("a", "", 9), perMinute("b", "", 1, hidden))
	f.wants(limiter.OK, []limiter.Descriptor{amount(5, "b=1"), amount(1, "a=1")}, "L", "9")
	f.wants(limiter.OK, of1("b=1"))
	f = withHeaders(t, memory.New(memory.Options{}), limiter.Settings{Shadow: true}, three, perMinute("a", "", 0))
	f.wants(limiter.OK, of1("a=1"), "L", "0")
}

// If counters cannot be read and on_error is deny, no hits remain, and the time of the reset is unknown.
func TestOwnHeadersWithoutAStore(t *testing.T) {
	f := withHeaders(t, &flaky{memory.New(memory.Options{}), all}, limiter.Settings{OnError: descriptor.OnErrorDeny}, everyField(), perMinute("k", "", 2))
	f.wants(limiter.OverLimit, of1("k=a"), "x-ratelimit-degraded", "deny", "limit", "2", "capacity", "2", "used", "2", "used_percent", "100", "remaining", "0", "window", "60")
	f.Swap(f.Tree(), limiter.Settings{OnError: descriptor.OnErrorAllow})
	f.wants(limiter.OK, of1("k=a"), "x-ratelimit-degraded", "allow")
}

// Names of limits have any length. A header truncates a long one.
func TestLongNamesInOwnHeaders(t *testing.T) {
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, []descriptor.OwnHeader{own("N", "by ", descriptor.FieldName, "!")},
		perMinute("k", "", 2, func(r *descriptor.Rule) { r.Name = strings.Repeat("ä", 50_000) }))
	f.wants(limiter.OK, of1("k=a"), "N", "by "+strings.Repeat("%C3%A4", descriptor.MaxNameInHeader)[:descriptor.MaxNameInHeader]+"!")
}

// The same in the headers of every family.
func TestLongNamesInHeaders(t *testing.T) {
	f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersDraft03 | descriptor.HeadersIETF}, perMinute("k", "", 2, func(r *descriptor.Rule) { r.Name = strings.Repeat(`"`, 50_000) }))
	for _, h := range f.decide(&limiter.Request{Domain: "d", Descriptors: of1("k=a")}).Headers {
		if len(h.Value) > 2*descriptor.MaxNameInHeader+20 {
			t.Errorf("%s has %d bytes", h.Key, len(h.Value))
		}
	}
}

// No field is longer than Longest returns.
func TestLongestFields(t *testing.T) {
	const most = descriptor.MaxRequests
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, everyField(), perMinute("k", "", most, func(r *descriptor.Rule) {
		r.Name, r.Limits[0].Window = strings.Repeat("n", 1000), descriptor.Window{Unit: descriptor.Year, Multiplier: 89}
	}))
	for _, hits := range []uint64{1, most} {
		d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: of1("k=a")[0].Entries, Hits: hits, HasHits: true}}})
		for _, h := range d.Headers {
			field := descriptor.HeaderField(slices.Index(descriptor.HeaderFieldNames, h.Key))
			if len(h.Value) > field.Longest() {
				t.Errorf("%s: %s has %d characters, Longest says %d", h.Key, h.Value, len(h.Value), field.Longest())
			}
		}
	}
}

// A header that names several limits describes none whose counter could not be read and which on_error let pass.
func TestOwnHeadersOfALimitThatFailed(t *testing.T) {
	two := perMinute("k", "", 9)
	second := two.Rule.Limits[0]
	second.Name, second.Requests, second.Window = "hourly", 100, descriptor.Window{Unit: descriptor.Hour}
	two.Rule.Limits[0].Name = "minutely"
	two.Rule.Limits = append(two.Rule.Limits, second)
	f := withHeaders(t, &flaky{memory.New(memory.Options{}), func(t *backend.Take) bool { return t.Limit.Name == "hourly" }}, limiter.Settings{OnError: descriptor.OnErrorAllow},
		[]descriptor.OwnHeader{of("minutely|hourly", own("Either", descriptor.FieldName, " ", descriptor.FieldRemaining)), of("hourly", own("Hourly", descriptor.FieldRemaining))}, two)
	f.wants(limiter.OK, of1("k=a"), "x-ratelimit-degraded", "allow", "Either", "minutely 8")
}

// All values of a decision are one allocation, and headers without values none.
func TestOwnHeadersAllocateOnce(t *testing.T) {
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, everyField(), perMinute("k", "", 1_000_000))
	req := &limiter.Request{Domain: "d", Descriptors: of1("k=a")}
	d := &limiter.Decision{}
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Decide(context.Background(), noon, req, d); err != nil {
			t.Fatal(err)
		}
	}); n > 1 && !racetest.On {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOwnHeaders(b *testing.B) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Headers: &descriptor.Headers{Own: everyField()}}, Children: []descriptor.NodeSpec{perMinute("k", "", 1<<31)}}}, descriptor.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	req, d := &limiter.Request{Domain: "d", Descriptors: of1("k=a")}, &limiter.Decision{}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Decide(context.Background(), noon, req, d); err != nil {
			b.Fatal(err)
		}
	}
}

// During a penalty no hits remain, independent of the counter.
func TestOwnHeadersDuringAPenalty(t *testing.T) {
	f := withHeaders(t, memory.New(memory.Options{}), limiter.Settings{}, []descriptor.OwnHeader{
		own("X-Remaining", descriptor.FieldRemaining),
		own("X-Used", descriptor.FieldUsed, "/", descriptor.FieldCapacity),
	}, perMinute("k", "", 5, penalty(time.Hour)))
	f.penalised(f.ask(6, "k=a"), time.Hour)
	f.now = noon.Add(time.Minute)
	f.wants(limiter.OverLimit, of1("k=a"), "X-Remaining", "0", "X-Used", "5/5")
}
