package descriptor

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func TestOrderBucket(t *testing.T) {
	named := &Domain{DomainSettings: DomainSettings{QuotaBuckets: &QuotaBuckets{Order: []string{"plan", "user"}}}}
	for _, c := range []struct {
		domain *Domain
		pairs  string
		want   string
	}{
		{nil, "", ""},
		{nil, "user=u path=/ plan=gold", "path=/ plan=gold user=u"},
		{&Domain{}, "b=1 a=2", "a=2 b=1"},
		{&Domain{DomainSettings: DomainSettings{QuotaBuckets: &QuotaBuckets{Deny: true}}}, "b=1 a=2", "a=2 b=1"},
		{named, "user=u plan=gold", "plan=gold user=u"},
		{named, "a=1 user=u", "user=u a=1"},
		{named, "z=1 a=2 user=u path=/ plan=gold", "plan=gold user=u a=2 path=/ z=1"},
		{named, "z=1 a=2", "a=2 z=1"},
	} {
		var pairs []Entry
		for _, pair := range strings.Fields(c.pairs) {
			key, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, Entry{key, value})
		}
		c.domain.OrderBucket(pairs)
		var got []string
		for _, p := range pairs {
			got = append(got, p.Key+"="+p.Value)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q: got %q, want %q", c.pairs, s, c.want)
		}
	}
}

// A bucket's id is a map: its pairs come in any order, but they are matched in one order, with each pair exactly once.
func TestOrderBucketIgnoresTheOrderOfPairs(t *testing.T) {
	key := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 2, -1)
	rapid.Check(t, func(t *rapid.T) {
		d := &Domain{DomainSettings: DomainSettings{QuotaBuckets: &QuotaBuckets{Order: rapid.SliceOfNDistinct(key, 0, 5, rapid.ID).Draw(t, "order")}}}
		id := rapid.MapOfN(key, rapid.SampledFrom([]string{"", "x", "y"}), 0, 8).Draw(t, "id")
		var pairs []Entry
		for k, v := range id {
			pairs = append(pairs, Entry{k, v})
		}
		slices.SortFunc(pairs, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
		other := rapid.Permutation(pairs).Draw(t, "other")
		d.OrderBucket(pairs)
		d.OrderBucket(other)
		if !slices.Equal(pairs, other) {
			t.Fatalf("%v and %v", pairs, other)
		}
		for i, p := range pairs {
			if v, given := id[p.Key]; !given || v != p.Value {
				t.Fatalf("%v is not in %v", p, id)
			}
			delete(id, p.Key)
			named := slices.Index(d.QuotaBuckets.Order, p.Key)
			for _, before := range pairs[:i] {
				place := slices.Index(d.QuotaBuckets.Order, before.Key)
				if named >= 0 && (place < 0 || place > named) || named < 0 && place < 0 && before.Key > p.Key {
					t.Fatalf("%v before %v with the order %q", before, p, d.QuotaBuckets.Order)
				}
			}
		}
		if len(id) > 0 {
			t.Fatalf("lost %v", id)
		}
	})
}

func TestDefaultDenies(t *testing.T) {
	for _, c := range []struct {
		domain *Domain
		want   bool
	}{{nil, false}, {&Domain{}, false}, {&Domain{DomainSettings: DomainSettings{QuotaBuckets: &QuotaBuckets{}}}, false}, {&Domain{DomainSettings: DomainSettings{QuotaBuckets: &QuotaBuckets{Deny: true}}}, true}} {
		if got := c.domain.DefaultDenies(); got != c.want {
			t.Errorf("%+v: %t", c.domain, got)
		}
	}
}

func TestQuotaBucketsAsText(t *testing.T) {
	for want, q := range map[string]QuotaBuckets{
		``:                       {},
		`{default: deny}`:        {Deny: true},
		`{order: ["a b", "\n"]}`: {Order: []string{"a b", "\n"}},
		`{order: ["plan", "user"], default: deny}`: {Order: []string{"plan", "user"}, Deny: true},
	} {
		if got := q.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
