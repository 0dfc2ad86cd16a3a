package region

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

type recorded interface {
	AppendRecord([]byte) []byte
	ReadRecord([]byte) error
}

// kinds returns an empty value of each kind of record.
func kinds() []recorded {
	return []recorded{new(Account), new(Counter), new(Role), new(Shares), new(Holding), new(Homes)}
}

// fill sets every field of a value to something that a record may have, so that a field which a record forgets is noticed.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if v.Type().Field(i).Name == "ahead" {
				continue // not kept
			}
			fill(r, reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem())
		}
	case reflect.Slice:
		s := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range 2 {
			fill(r, s.Index(i))
		}
		v.Set(s)
	case reflect.String:
		v.SetString([]string{"eu", "us", "a region"}[r.IntN(3)])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint64, reflect.Uint32:
		v.SetUint(1 + r.Uint64N(1<<31))
	case reflect.Int64:
		v.SetInt(1 + r.Int64N(1<<50))
	case reflect.Float64:
		v.SetFloat(r.Float64() * 100)
	default:
		panic(v.Type())
	}
	switch g := v.Addr().Interface().(type) {
	case *Grant:
		g.Permits = g.Used + g.Returned + 1
	case *Counter:
		g.Peers[0].Region, g.Peers[1].Region = "eu", "us"
	case *Shares:
		g.Holders[0].Region, g.Holders[1].Region = "eu", "us"
	case *Holding:
		g.Returned = 0 // while a question is on its way, the tokens are there
	case *Homes:
		g.Rules[1].Rule += g.Rules[0].Rule
		g.Former[1].Rule += g.Former[0].Rule
	}
}

func TestRecords(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		for i, v := range kinds() {
			fill(r, reflect.ValueOf(v).Elem())
			b := v.AppendRecord(nil)
			got := kinds()[i]
			if err := got.ReadRecord(b); err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			if !reflect.DeepEqual(got, v) {
				t.Fatalf("%T\n%+v\nbecame\n%+v", v, v, got)
			}
			for n := range b {
				if err := kinds()[i].ReadRecord(b[:n]); err == nil {
					t.Fatalf("%T: the first %d of %d bytes are a record", v, n, len(b))
				}
			}
			if kinds()[i].ReadRecord(append(b, 0)) == nil {
				t.Fatalf("%T: with another byte it is a record, too", v)
			}
			if other := kinds()[(i+1)%len(kinds())]; other.ReadRecord(b) == nil {
				t.Fatalf("the record of a %T is one of a %T", v, other)
			}
		}
	}
}

// The zero values are records, too.
func TestRecordsOfNothing(t *testing.T) {
	for i, v := range kinds() {
		got := kinds()[i]
		if err := got.ReadRecord(v.AppendRecord(nil)); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%T: %v, %+v", v, err, got)
		}
	}
}

// Records that the arithmetic cannot have made.
func TestRecordsThatLie(t *testing.T) {
	for name, v := range map[string]recorded{
		"more used than granted": &Account{Grants: []Grant{{Permits: 1, Used: 2}}},
		"negative permits":       &Account{Grants: []Grant{{Permits: -1}}},
		"too late":               &Account{Seen: latest + 1},
		"infinite demand":        &Account{demand: demand{rate: 1e300}},
		"negative demand":        &Account{demand: demand{count: -1}},
		"regions out of order":   &Counter{Peers: []Peer{{Region: "us"}, {Region: "eu"}}},
		"one region twice":       &Shares{Holders: []Holder{{Region: "us"}, {Region: "us"}}},
		"negative rate":          &Holding{Rate: -1},
		"negative tokens":        &Holding{Returned: -1},
		"negative count":         &Counter{State: backend.State{Count: -1}},
		"rules out of order":     &Homes{Rules: []RuleHome{{Rule: 2}, {Rule: 1}}},
		"one rule twice":         &Homes{Rules: []RuleHome{{Rule: 2}, {Rule: 2}}},
	} {
		b := v.AppendRecord(nil)
		if err := reflect.New(reflect.TypeOf(v).Elem()).Interface().(recorded).ReadRecord(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	b := (&Holding{Returned: 1}).AppendRecord(nil)
	if b[len(b)-1] = 0; new(Holding).ReadRecord(b) == nil {
		t.Error("a record whose flag says that tokens are returned, and whose number of them is 0, can be read")
	}
	if new(Role).ReadRecord((&Role{From: never}).AppendRecord(nil)) != nil {
		t.Error("a role that waits for consent cannot be read")
	}
}

// Nothing that a Redis may hold makes the arithmetic panic.
func FuzzRecords(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range kinds() {
		f.Add(v.AppendRecord(nil), int64(noon), int64(1))
		fill(r, reflect.ValueOf(v).Elem())
		f.Add(v.AppendRecord(nil), int64(noon), int64(40))
	}
	var limits []*descriptor.Limit
	for _, l := range []descriptor.Limit{
		{}, {Algorithm: descriptor.SlidingWindow}, {Algorithm: descriptor.SlidingWindow, Precision: 5}, {Algorithm: descriptor.SlidingLog},
		{Algorithm: descriptor.TokenBucket, Burst: 600}, {Algorithm: descriptor.TokenBucket, Burst: 600, Interval: true}, {FirstHit: true},
		{Algorithm: descriptor.LeakyBucket, Burst: 600},
	} {
		l.Window.Unit, l.Requests = descriptor.Minute, fixed
		if err := l.Compile(); err != nil {
			f.Fatal(err)
		}
		limits = append(limits, &l)
	}
	f.Fuzz(func(t *testing.T, b []byte, now, hits int64) {
		now, hits = min(max(now, 0), latest), min(max(hits, -backend.MaxHits), backend.MaxHits)
		for i, v := range kinds() {
			if v.ReadRecord(b) != nil {
				continue
			}
			again := kinds()[i]
			if err := again.ReadRecord(v.AppendRecord(nil)); err != nil || !reflect.DeepEqual(v, again) {
				t.Fatalf("%+v became %+v: %v", v, again, err)
			}
			if !bytes.Equal(v.AppendRecord(nil), again.AppendRecord(nil)) {
				t.Fatalf("%+v has two records", v)
			}
			for _, l := range limits {
				x := kinds()[i]
				_ = x.ReadRecord(b)
				use(x, l, now, hits)
			}
		}
	})
}

// use calls every method of a record.
func use(v recorded, l *descriptor.Limit, now, hits int64) {
	r := at(now)
	r.Generation = 1 << 62
	switch v := v.(type) {
	case *Account:
		v.Take(r, max(hits, 0))
		q, _ := v.Ask(r, "b", 1<<62, max(hits, 0), 7)
		v.Apply(r, &Answer{Epoch: q.Epoch, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Permits: 1, ValidFor: second})
		v.Left(now)
	case *Counter:
		d := Duty{Epoch: v.Epoch, From: v.From, Regions: three, Until: never, Grants: Grantable(l, three)}
		v.Take(r, l, &d, hits)
		q := Question{Region: "b", Epoch: v.Epoch, Incarnation: 1, Number: 1, Want: 10, Need: max(hits, 0)}
		for i := range v.Peers {
			q.Region, q.Grants = v.Peers[i].Region, v.Peers[i].Grants
		}
		v.Exchange(r, l, &d, &q)
	case *Role:
		e := Epoch{Number: v.Known, Home: "a", Regions: []string{"a", "b"}}
		v.Begin(r, &e)
		v.Consented(r, &e, "b", now)
		v.Duty(r, &e)
	case *Shares:
		if Divisible(l, three) {
			v.Exchange(r, l, &Duty{Epoch: v.Epoch, From: v.From, Regions: three, Until: never}, &ShareQuestion{Region: "b", Epoch: v.Epoch, Incarnation: 1, Number: 1, Demand: max(hits, 0)})
		}
	case *Holding:
		if Divisible(l, three) {
			v.Take(r, l, max(hits, 0))
			q, _ := v.Ask(r, l, "b", 1<<62, 7)
			v.Apply(r, l, &ShareAnswer{Epoch: q.Epoch, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Rate: 10, Tokens: 10, ValidFor: second})
		}
	}
}
