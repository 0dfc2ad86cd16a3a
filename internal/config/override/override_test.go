package override

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestValidate(t *testing.T) {
	good := func() *Override {
		return &Override{Identity: identity("d.k", "", "k", "v"), Numbers: Numbers{Kind: Replace, Requests: 5}}
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Override){
		"domain: it is missing":                    func(o *Override) { o.Domain = "" },
		"rule: it is missing":                      func(o *Override) { o.Rule = "" },
		"entries: there are none":                  func(o *Override) { o.Entries = nil },
		"entries: more than":                       func(o *Override) { o.Entries = make([]descriptor.Entry, MaxEntries+1) },
		"entries[0]: a key or a value of":          func(o *Override) { o.Entries[0].Value = strings.Repeat("v", MaxName+1) },
		"reason: more than":                        func(o *Override) { o.Reason = strings.Repeat("r", MaxText+1) },
		"author: more than":                        func(o *Override) { o.Author = strings.Repeat("r", MaxText+1) },
		"domain, rule or limit: more than":         func(o *Override) { o.Limit = strings.Repeat("r", MaxName+1) },
		"exactly one of requests_per_unit, factor": func(o *Override) { o.Numbers = Numbers{} },
		"factor: it must be":                       func(o *Override) { o.Numbers = Numbers{Kind: Scale} },
		"requests_per_unit: it has no":             func(o *Override) { o.Kind = Blocked },
		"burst: it belongs to":                     func(o *Override) { o.Numbers = Numbers{Kind: Scale, Requests: One, Burst: 1} },
		"domain: it is not UTF-8":                  func(o *Override) { o.Domain = "\xff" },
		"author: it is not UTF-8":                  func(o *Override) { o.Author = "\xff" },
		"entries[0]: it is not UTF-8":              func(o *Override) { o.Entries[0].Value = "\xff" },
		"not_before and expires_at: it":            func(o *Override) { o.ExpiresAt = 1 << 40 },
		"expires_at: it is not after":              func(o *Override) { o.NotBefore, o.ExpiresAt = 5, 5 },
	} {
		o := good()
		change(o)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestApply(t *testing.T) {
	minute := descriptor.Window{Unit: descriptor.Minute}
	bucket := descriptor.Limit{Requests: 10, Burst: 10, Window: minute, Algorithm: descriptor.TokenBucket}
	burst := descriptor.Limit{Requests: 10, Burst: 30, Window: minute, Algorithm: descriptor.TokenBucket}
	window := descriptor.Limit{Requests: 10, Window: minute}
	for name, test := range map[string]struct {
		limit           descriptor.Limit
		numbers         Numbers
		requests, burst uint64
	}{
		"a window":                             {window, Numbers{Kind: Replace, Requests: 7}, 7, 0},
		"nothing passes":                       {window, Numbers{Kind: Replace}, 0, 0},
		"half":                                 {window, Numbers{Kind: Scale, Requests: One / 2}, 5, 0},
		"rounded down, but not to nothing":     {window, Numbers{Kind: Scale, Requests: 1}, 1, 0},
		"at most the bound":                    {window, Numbers{Kind: Scale, Requests: 900 * One}, 1000, 0},
		"a bucket whose burst is its requests": {bucket, Numbers{Kind: Replace, Requests: 7}, 7, 7},
		"a bucket with another burst":          {burst, Numbers{Kind: Replace, Requests: 7}, 7, 30},
		"both":                                 {burst, Numbers{Kind: Replace, Requests: 7, Burst: 9}, 7, 9},
		"both scaled":                          {burst, Numbers{Kind: Scale, Requests: 2 * One}, 20, 60},
		"a burst at most the bound":            {burst, Numbers{Kind: Replace, Requests: 7, Burst: 5000}, 7, 1000},
		"blocked":                              {burst, Numbers{Kind: Blocked}, 0, 0},
	} {
		l := test.limit
		err := test.numbers.Apply(&l, 1000)
		if err != nil || l.Requests != test.requests || l.Burst != test.burst || !l.Compiled() {
			t.Errorf("%s: %+v %v", name, l, err)
		}
	}
	if was := bucket; (&Numbers{Kind: Replace}).Apply(&bucket, 1000) == nil || bucket != was {
		t.Errorf("a bucket that is never refilled: %+v", bucket)
	}
	if err := (&Numbers{Kind: Replace}).Apply(&bucket, 1000); err == nil || !strings.Contains(err.Error(), "never refilled") {
		t.Errorf("a bucket that is never refilled: %v", err)
	}
}

func TestWords(t *testing.T) {
	for want, n := range map[string]Numbers{
		"5 requests per unit":                  {Kind: Replace, Requests: 5},
		"0 requests per unit, burst 7":         {Kind: Replace, Burst: 7},
		"the rule's numbers times 1.5":         {Kind: Scale, Requests: One * 3 / 2},
		"unlimited until 2027-01-15T08:00:00Z": {Kind: Unlimited, ExpiresAt: 1_800_000_000},
		"blocked from 2027-01-15T08:00:00Z":    {Kind: Blocked, NotBefore: 1_800_000_000},
	} {
		if got := n.Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Two identities never have the same text.
func TestStringTellsIdentitiesApart(t *testing.T) {
	seen := map[string]Identity{}
	for _, i := range []Identity{
		identity("d", "k", "a", "b"), identity("d", "", "k", "a", "b", ""), identity("d|k", "", "a", "b"),
		identity("d", "", "a=b", ""), identity("d", "", "a", "b"), identity("d", "", "a", "b|"), identity("d", "", "a", `b\`, "", ""),
	} {
		if other, twice := seen[i.String()]; twice {
			t.Errorf("%+v and %+v are both %s", i, other, i.String())
		}
		seen[i.String()] = i
	}
}

// The documentation states the memory for a million overrides; it is linear.
func TestMemoryOfASet(t *testing.T) {
	const n, most = 100_000, 140 // bytes for each
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	set := NewSet(0, func(yield func(*Identity, Numbers) bool) {
		for i := range n {
			entries := []descriptor.Entry{{Key: "tenant", Value: fmt.Sprintf("customer-%08d", i)}, {Key: "endpoint", Value: "/v1/messages"}}
			if !yield(&Identity{Domain: "api", Rule: "api.tenant.endpoint", Entries: entries}, Numbers{Kind: Replace, Requests: uint64(i)}) {
				return
			}
		}
	})
	each := (live() - before) / n
	if runtime.KeepAlive(set); each > most || set.Len() != n {
		t.Errorf("%d overrides take %d bytes each, want %d at most", set.Len(), each, most)
	}
}
