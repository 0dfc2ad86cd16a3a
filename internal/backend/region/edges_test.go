package region

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// What earlier processes wrote stays readable: a change of these bytes needs another version.
func TestTheFormOfRecords(t *testing.T) {
	grants := []Grant{{Incarnation: 7, Number: 1, Permits: 5, Used: 2, Returned: 1, Charged: 90, Ends: 95, Expires: 99}, {Incarnation: 8, Number: 2, Permits: 3}}
	for want, v := range map[string]recorded{
		"410207000000000000000102c8010113090208d804000000000000e03f0201030a130200010a0402130a0101080000000000000002060000c70100c701030162010700000000000000090000000000000001040100010a0402130a010500000000000000": &Account{Rules: 5, Incarnation: 7, Epoch: 1, Generation: 2, Seen: 100, Grants: grants, Waiting: true, AskedAt: 90, SentAt: 95, Again: 101, Remaining: 4, Limit: 600,
			Question: Question{Region: "b", Epoch: 1, Incarnation: 7, Number: 3, Nonce: 9, Want: -1, Need: 2, Grants: grants[:1]},
			demand:   demand{rate: 0.5, count: 1, since: 99, last: 98, size: 5, asked: 90}},
		"4301780a0402010000000201000001060801016207000000000000000309000000000000000600000000000000010200010a04023c0a4e01080000000000000002060000770077": &Counter{State: backend.State{Start: 60, Count: 5, Prev: 2, Tail: []uint32{1, 258}}, Epoch: 1, From: 3, Learning: 4,
			Peers: []Peer{{Region: "b", Incarnation: 7, Number: 3, Nonce: 9, Former: 6, Settled: 1, Grants: grants}}},
		"5201020103feffffffffffffffff010101620a":                                                   &Role{Known: 2, Epoch: 1, Generation: 3, From: never, Consents: []Consent{{Region: "b", Asked: 5}}},
		"5301010401060a1808010162010000000000000002030000000000000004000000000000000a0c0e10121416": &Shares{Epoch: 1, From: 2, Begun: true, Saved: 3, Part: 5, SavedAt: 12, Learning: 4, Holders: []Holder{{Region: "b", Incarnation: 1, Number: 2, Nonce: 3, Former: 4, Held: 5, Given: 6, Minted: 7, Expires: 8, Lost: 9, LostExpires: 10, Demand: 11}}},
		"480101000000000000000203c801000a0c0e0301000000000000000000c701c70100c7010a02000000":       &Holding{Incarnation: 1, Epoch: 2, Generation: 3, Seen: 100, Rate: 5, Tokens: 6, Expires: 107, AskedAt: 98, SentAt: 99, State: backend.State{Start: 5, Count: 1}},
		"480101000000000000000203c801040a0c0e0301000000000000000000c701c70100c7010a0200000012":     &Holding{Incarnation: 1, Epoch: 2, Generation: 3, Seen: 100, Rate: 5, Tokens: 6, Expires: 107, AskedAt: 98, SentAt: 99, Returned: 9, State: backend.State{Start: 5, Count: 1}},
	} {
		if got := hex.EncodeToString(v.AppendRecord(nil)); got != want {
			t.Errorf("%T is\n%s, want\n%s", v, got, want)
		}
		b, _ := hex.DecodeString(want)
		got := reflect.New(reflect.TypeOf(v).Elem()).Interface().(recorded)
		if err := got.ReadRecord(b); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%s: %v, %+v", want, err, got)
		}
	}
	for i, v := range kinds() {
		b := v.AppendRecord(nil)
		if b[1]++; kinds()[i].ReadRecord(b) == nil {
			t.Errorf("%T: a record of another version can be read", v)
		}
	}
}

// Numbers may be as large as the arithmetic makes them, and no larger.
func TestBoundsOfRecords(t *testing.T) {
	asks := func(want, need int64) recorded {
		return &Account{Waiting: true, Question: Question{Want: want, Need: need}}
	}
	for _, c := range []struct {
		name string
		v    recorded
		ok   bool
	}{
		{"as many permits as can be counted", &Account{Grants: []Grant{{Permits: backend.MaxCount}}}, true},
		{"more", &Account{Grants: []Grant{{Permits: backend.MaxCount + 1}}}, false},
		{"all used", &Account{Grants: []Grant{{Permits: 3, Used: 2, Returned: 1}}}, true},
		{"the latest time", &Account{Seen: latest}, true},
		{"the earliest time", &Account{Seen: -latest}, true},
		{"an earlier one", &Account{Seen: -latest - 1}, false},
		{"a role from the latest time", &Role{From: latest}, true},
		{"from a later one", &Role{From: latest + 1}, false},
		{"from the earliest one", &Role{From: -latest}, true},
		{"from an earlier one", &Role{From: -latest - 1}, false},
		{"the largest demand", &Account{demand: demand{rate: backend.MaxCount, count: latest}}, true},
		{"a larger one", &Account{demand: demand{count: latest + 1}}, false},
		{"a negative rate", &Account{demand: demand{rate: -1}}, false},
		{"no number", &Account{demand: demand{rate: math.NaN()}}, false},
		{"a question for the most", asks(latest, latest), true},
		{"for the least", asks(-latest, -latest), true},
		{"that wants more", asks(latest+1, 0), false},
		{"that wants less", asks(-latest-1, 0), false},
		{"that needs more", asks(0, latest+1), false},
		{"that needs less", asks(0, -latest-1), false},
		{"one region twice", &Counter{Peers: []Peer{{Region: "us"}, {Region: "us"}}}, false},
		{"returned tokens", &Holding{Returned: backend.MaxCount}, true},
		{"more returned tokens than can be counted", &Holding{Returned: backend.MaxCount + 1}, false},
		{"returned tokens on their way", &Holding{Waiting: true, Question: ShareQuestion{Returned: 1}}, true},
		{"a negative part of a token", &Shares{Part: -1}, false},
		{"an account that waits", &Account{Waiting: true}, true},
		{"an account of a full counter", &Account{Full: true}, true},
	} {
		got := reflect.New(reflect.TypeOf(c.v).Elem()).Interface().(recorded)
		err := got.ReadRecord(c.v.AppendRecord(nil))
		if (err == nil) != c.ok || c.ok && !reflect.DeepEqual(got, c.v) {
			t.Errorf("%s: %v, %+v", c.name, err, got)
		}
	}
	b := (&Account{}).AppendRecord(nil)
	const flags = 13 // after the letter, the version, a word and three numbers
	for f := range 256 {
		if b[flags] = byte(f); (new(Account).ReadRecord(b) == nil) != (f == 0 || f == 2) { // one that waits has a question, too
			t.Errorf("the flags %d: readable is %v", f, f != 0 && f != 2)
		}
	}
}

// The latest time is part of the form: what one process writes, all others must read.
func TestTheLatestTimeOfARecord(t *testing.T) {
	if new(Account).ReadRecord((&Account{Seen: 1_152_921_504_606_846_976}).AppendRecord(nil)) != nil {
		t.Error("the latest time cannot be read")
	}
	if new(Account).ReadRecord((&Account{Seen: 1_152_921_504_606_846_977}).AppendRecord(nil)) == nil {
		t.Error("a later one can be read")
	}
}

// A record begins with the letter of its kind. What is read replaces all that the value had.
func TestARecordIsOfOneKind(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i, v := range kinds() {
		b := v.AppendRecord(nil)
		fill(r, reflect.ValueOf(v).Elem())
		if err := v.ReadRecord(b); err != nil || !reflect.DeepEqual(v, kinds()[i]) {
			t.Errorf("%v, and %T keeps %+v", err, v, v)
		}
		if b[0] = 'X'; v.ReadRecord(b) == nil {
			t.Errorf("%T: a record of another kind can be read", v)
		}
	}
}

// The record of a divided bucket has its shares, or counts as lost.
func TestTheRecordOfADividedBucket(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []byte
		ok     bool
	}{
		{"shares", (&Shares{Begun: true}).AppendRecord(nil), true},
		{"shares that cannot be read", append((&Shares{Begun: true}).AppendRecord(nil), 0), false},
		{"shares of a bucket that is not divided", (&Shares{}).AppendRecord(nil), false},
		{"nothing", nil, false},
	} {
		w := writer{begin(nil, 'D')}
		w.text(string(c.shares))
		rest := (&Counter{}).AppendRecord(nil)[2:]
		if err := new(Counter).ReadRecord(append(w.b, rest...)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What cannot be read is zero, and so is all that follows. What ends with the record can be read.
func TestWhatCannotBeReadIsZero(t *testing.T) {
	w := writer{}
	w.number(math.MaxInt64)
	large := w.b
	for _, c := range []struct {
		name string
		b    []byte
		read func(*reader) any
		zero any
	}{
		{"a word", make([]byte, 7), func(r *reader) any { return r.word() }, uint64(0)},
		{"a count", nil, func(r *reader) any { return r.count() }, uint64(0)},
		{"a number", nil, func(r *reader) any { return r.number() }, int64(0)},
		{"an amount", large, func(r *reader) any { return r.amount() }, int64(0)},
		{"a time", large, func(r *reader) any { return r.time(0) }, int64(0)},
		{"a time or never", large[:len(large)-1], func(r *reader) any { return r.timeOrNever() }, int64(0)},
		{"a time after the latest", binary.AppendVarint(nil, never-1), func(r *reader) any { return r.timeOrNever() }, int64(0)},
		{"a length", []byte{2, 0}, func(r *reader) any { return r.length() }, uint64(0)},
		{"a text", []byte{2, 'a'}, func(r *reader) any { return r.text() }, ""},
	} {
		r := &reader{b: c.b}
		if got := c.read(r); got != c.zero || r.end() == nil || c.read(r) != c.zero {
			t.Errorf("%s is %v", c.name, got)
		}
	}
	r := &reader{b: []byte{2, 'e', 'u'}}
	if got := r.text(); got != "eu" || r.end() != nil {
		t.Errorf("%q is read", got)
	}
}

// An account whose clock was set back gives up all that it holds, and neither uses it nor takes hits of it back.
func TestAnAccountWhoseClockWasSetBack(t *testing.T) {
	for _, r := range []Reading{{Now: noon, Least: math.MinInt64, Generation: 1}, {Now: noon - 1, Least: math.MinInt64}} {
		a := Account{
			Seen: noon, Waiting: true, Again: noon + second, SentAt: noon - 1,
			Grants: []Grant{{Number: 1, Permits: 10, Used: 4, Expires: noon + 10*second}, {Number: 2, Permits: 5, Expires: noon - second}},
			demand: demand{since: noon - second, last: noon + second},
		}
		if got := a.Take(r, 1); got.Allowed || got.Left != 0 || a.Waiting || a.Seen != r.Now || a.Generation != r.Generation {
			t.Errorf("%+v: %+v, %+v", r, got, a)
		}
		if a.Again != 0 || a.SentAt != 0 {
			t.Errorf("%+v: it waits until %d, and has asked at %d", r, a.Again, a.SentAt)
		}
		if a.Grants[0].rest() != 0 || a.Grants[0].Expires != r.Now || a.Grants[1].rest() != 0 || a.Grants[1].Expires != noon-second {
			t.Errorf("%+v: it holds %+v", r, a.Grants)
		}
		if a.GiveBack(r, 1) {
			t.Errorf("%+v: hits of permits that were given up are given back", r)
		}
	}
	a := Account{Seen: noon, Generation: 2, Grants: []Grant{{Permits: 10, Used: 4, Expires: noon + second}}}
	if a.GiveBack(Reading{Now: noon, Least: noon + 1, Generation: 2}, 1) || a.GiveBack(Reading{Now: noon, Least: noon, Generation: 1}, 1) || a.Grants[0].Used != 4 {
		t.Error("hits are given back by a caller that must raise the generation first")
	}
}

// Hits are given back to the latest grants first, all or none of them, and never to grants that have ended.
func TestGiveBackOfSeveralGrants(t *testing.T) {
	for _, c := range []struct {
		hits int64
		ok   bool
		used []int64
	}{
		{0, true, []int64{5, 4, 3, 9}},
		{1, true, []int64{5, 4, 2, 9}},
		{2, true, []int64{5, 4, 1, 9}},
		{3, true, []int64{5, 4, 0, 9}},
		{4, true, []int64{5, 3, 0, 9}},
		{6, true, []int64{5, 1, 0, 9}},
		{12, true, []int64{0, 0, 0, 9}},
		{13, false, []int64{5, 4, 3, 9}},
	} {
		a := Account{Seen: noon}
		for i, used := range []int64{5, 4, 3, 9} {
			g := Grant{Number: uint64(i), Permits: 10, Used: used, Expires: noon + second}
			if i == 3 {
				g.Expires = noon
			}
			a.Grants = append(a.Grants, g)
		}
		ok := a.GiveBack(at(noon), c.hits)
		var used []int64
		for i := range a.Grants {
			used = append(used, a.Grants[i].Used)
		}
		if ok != c.ok || !slices.Equal(used, c.used) {
			t.Errorf("%d hits: %v, and %v are used, want %v and %v", c.hits, ok, used, c.ok, c.used)
		}
	}
}

// A grant bounds when a change must be written while something of it is left or was spent: what was returned binds nobody.
func TestTheBoundOfAnAccount(t *testing.T) {
	for _, c := range []struct {
		name  string
		g     Grant
		bound bool
	}{
		{"all is returned", Grant{Permits: 5, Returned: 5}, false},
		{"one is left", Grant{Permits: 5, Returned: 4}, true},
		{"one is spent, and the others are returned", Grant{Permits: 5, Used: 1, Returned: 4}, true},
	} {
		c.g.Expires = noon + second
		a := Account{Grants: []Grant{c.g}}
		if got := a.Bound(noon); (got == noon+second) != c.bound || (got == never) == c.bound {
			t.Errorf("%s: until %d", c.name, got-noon)
		}
		if got := a.Bound(noon + second); got != never {
			t.Errorf("%s: a grant that has expired bounds it until %d", c.name, got-noon)
		}
	}
}

// A single hit that was spent counts, even if the permit has expired since: as one of the grant that expired last.
func TestOneHitIsSpent(t *testing.T) {
	a := Account{Grants: []Grant{{Number: 1, Permits: 1, Expires: noon - 1}, {Number: 2, Permits: 1, Expires: noon - 2}}}
	a.Spent(noon, 1, noon)
	if a.Grants[0].Used != 1 || a.Grants[1].Used != 0 || a.demand.count != 1 {
		t.Errorf("%+v", a)
	}
	a.Spent(noon, 1, noon)
	if a.Grants[1].Used != 1 {
		t.Errorf("%+v", a)
	}
}

// An account that waits for an answer offers all that it has, and is due when its patience ends; one permit that is left is reason to ask.
func TestTheOfferOfAnAccountThatWaits(t *testing.T) {
	a := Account{Waiting: true, SentAt: noon, Rules: 7, Grants: []Grant{{Permits: 1, Expires: noon + 9*second}}, demand: demand{last: noon + refresh, size: 10}}
	if o := a.Offer(noon); o.Low != 0 || o.Left != 1 || o.Due != noon+patience || o.Rules != 0 {
		t.Errorf("%+v", o)
	}
	a.Waiting, a.demand.size = false, 1
	if a.Due(at(noon+refresh-1), 0) || !a.Due(at(noon+refresh), 0) {
		t.Error("an account with one permit does not ask when its answer is old, or asks earlier")
	}
}

// An account is fresh until it has asked, and due when a request needs permits.
func TestFreshAndDue(t *testing.T) {
	a := Account{}
	if !a.Fresh() {
		t.Error("an account that has never asked is not fresh")
	}
	if a.Due(at(noon), 0) || !a.Due(at(noon), 1) {
		t.Error("an empty account is due without need, or not due with it")
	}
	if _, ok := a.Ask(at(noon), "b", 1, 1, 5); !ok || a.Fresh() {
		t.Error("an account that has asked is fresh")
	}
	a.Incarnation = 0
	if a.Fresh() {
		t.Error("an account that was restored from a copy is fresh")
	}
	a.Incarnation, a.Question.Number = 5, 0
	if a.Fresh() {
		t.Error("an account that begins anew is fresh")
	}
}

// An account that holds enough reports and wants nothing. After an answer that there is nothing, it does not hurry; after a mere report it is as
// before.
func TestAReportWantsNothing(t *testing.T) {
	for _, c := range []struct {
		size, want int64 // of the last grant; of the question
	}{{2, 0}, {200, 1450}} {
		a := Account{
			Seen: noon, Incarnation: 1, Epoch: 1, Limit: fixed, Question: Question{Number: 4},
			Grants: []Grant{{Incarnation: 1, Number: 4, Permits: 50, Expires: noon + 20*second}},
			demand: demand{rate: 1500.0 / 15 / second, last: noon, since: noon, size: c.size},
		}
		q, ok := a.Ask(at(noon), "b", 1, 0, 5)
		if !ok || q.Want != c.want || q.Need != 0 {
			t.Fatalf("an account with 50 permits of %d asks for %d, %v, want %d", c.size, q.Want, ok, c.want)
		}
		a.Apply(at(noon), &Answer{Epoch: 1, Incarnation: 1, Number: q.Number, Nonce: q.Nonce, Result: Enough, Limit: fixed})
		if hurries := a.demand.size > 0; hurries != (c.want == 0) {
			t.Errorf("an account that wanted %d and got nothing has the size %d", c.want, a.demand.size)
		}
	}
}

// A grant may be used for as long as the home says, on a clock that may run faster by one part in 400, less the 50 ms by which a clock can be set
// back unnoticed, from when it was asked for. One that comes at its end is worth nothing.
func TestHowLongAGrantLasts(t *testing.T) {
	const life = 4_000_000 - 10_000 - 1 - 50_000
	for _, c := range []struct{ late, left int64 }{{0, 7}, {life - 1, 7}, {life, 0}} {
		a := Account{Seen: noon}
		q, _ := a.Ask(at(noon), "b", 1, 1, 5)
		if !a.Apply(at(noon+c.late), &Answer{Epoch: 1, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Permits: 7, Limit: fixed, ValidFor: 4 * second}) {
			t.Fatal("the account does not wait for the answer")
		}
		if a.Left(noon+c.late) != c.left || a.Grants[0].rest() != c.left || a.demand.size != c.left || a.Grants[0].Expires != noon+life {
			t.Errorf("of 7 permits that come after %d us %d are left, and the grant is %+v", c.late, a.Left(noon+c.late), a.Grants[0])
		}
	}
	if shortened(400) != 398 || pastLife != 30_075_001 || pastLease != 30_075_001 {
		t.Errorf("400 us are shortened to %d, and 30 s take %d and %d on another clock", shortened(400), pastLife, pastLease)
	}
}

// A counter that its region counted alone begins with what was used there. One that another home had begins full.
func TestInherit(t *testing.T) {
	l := perMinute(t, descriptor.Limit{})
	for _, c := range []struct {
		name string
		d    Duty
		want int64
	}{
		{"alone", Duty{Epoch: 1, Regions: three, Until: never, Grants: true}, 100},
		{"from another home", Duty{Epoch: 1, From: noon, Regions: three, Until: never, Grants: true}, fixed},
		{"that may not act", Duty{Epoch: 1, Regions: three, Until: noon - 1, Grants: true}, 0},
	} {
		var x Counter
		x.Inherit(at(noon), l, &c.d, 100)
		if got := x.settle(l, noon, 0).Used; got != c.want {
			t.Errorf("%s: %d are used, want %d", c.name, got, c.want)
		}
	}
}

// A record may be forgotten when what is used has expired, what others hold has ended, and a minute of late questions has passed.
func TestRecordsExpire(t *testing.T) {
	const late = 2 * 30_075_001
	window, log := perMinute(t, descriptor.Limit{}), perMinute(t, descriptor.Limit{Algorithm: descriptor.SlidingLog})
	used := func(l *descriptor.Limit) (c Counter) {
		c.settle(l, noon+10*second, 1)
		return c
	}
	peers := func(grants ...Grant) Counter { return Counter{Peers: []Peer{{}, {Grants: grants}}} }
	for _, c := range []struct {
		name string
		c    Counter
		l    *descriptor.Limit
		want int64
	}{
		{"nothing", Counter{}, window, noon + late},
		{"until all have been heard", Counter{Learning: noon + second}, window, noon + second + late},
		{"until the window ends", used(window), window, noon + 60*second + late},
		{"and hits of a log stay longer", Counter{}, log, noon + 2_400_000 + late},
		{"what others may use", peers(Grant{Expires: noon + 3*second}, Grant{Expires: noon + second}), window, noon + 3*second + late},
		{"what others report", peers(Grant{Ends: noon + 3*second}, Grant{Ends: noon + second}), window, noon + 3*second + late},
		{"what was over before", peers(Grant{Ends: noon - second, Expires: noon - second}), window, noon + late},
	} {
		if got := c.c.Expires(noon, c.l); got != c.want {
			t.Errorf("%s: %d us after noon, want %d", c.name, got-noon, c.want-noon)
		}
	}
	a := Account{Grants: []Grant{{Expires: noon + 3*second}, {Expires: noon + second}}}
	if a.Expires(noon) != noon+3*second+late || a.Expires(noon+9*second) != noon+9*second+late {
		t.Errorf("an account expires after %d and %d us", a.Expires(noon)-noon, a.Expires(noon+9*second)-noon)
	}
}

// A part of a bucket without rate or tokens lets nothing pass, nor does one that no home can have answered.
func TestAPartOfNothing(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: fixed})
	for _, c := range []struct {
		rate, tokens int64
		ok           bool
	}{{1, 1, true}, {0, 1, false}, {1, 0, false}, {-60_000_000, 1, false}} {
		if s, ok := ofShare(l, c.rate, c.tokens); ok != c.ok || ok && (s.Requests != uint64(c.rate) || s.Capacity() != uint64(c.tokens)) {
			t.Errorf("%d per minute and %d tokens: %v, %+v", c.rate, c.tokens, ok, s)
		}
	}
}

// An answer that brings more tokens than the part holds fills it, and no more.
func TestTokensOfAPart(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: fixed})
	for _, c := range []struct{ mint, left int64 }{{4, 4}, {30, 30}, {50, 30}} {
		h := Holding{Seen: noon}
		q, ok := h.Ask(at(noon), l, "b", 1, 5)
		if !ok || !h.Apply(at(noon), l, &ShareAnswer{Epoch: 1, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Rate: 30, Tokens: 30, Mint: c.mint, ValidFor: 30 * second}) {
			t.Fatal("the part is not applied")
		}
		if got := h.Take(at(noon), l, 0); got.Left != c.left {
			t.Errorf("%d tokens are left of %d in a bucket of 30, want %d", got.Left, c.mint, c.left)
		}
	}
}
