package descriptor

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// QuotaBuckets are a domain's settings for quota buckets, whose requests a client decides itself.
type QuotaBuckets struct {
	Order []string // the keys of a bucket's id that are matched first, in this order
	Deny  bool     // a bucket that no rule matches lets nothing pass
}

// String returns the settings as a rule file writes them, or "" if they are those without the key.
func (q *QuotaBuckets) String() string {
	if q == nil || len(q.Order) == 0 && !q.Deny {
		return ""
	}
	keys := make([]string, len(q.Order))
	for i, key := range q.Order {
		keys[i] = strconv.Quote(key)
	}
	var s []string
	if len(keys) > 0 {
		s = append(s, "order: ["+strings.Join(keys, ", ")+"]")
	}
	if q.Deny {
		s = append(s, "default: deny")
	}
	return "{" + strings.Join(s, ", ") + "}"
}

// OrderBucket sorts the pairs of a bucket's id into the order in which they are matched: first the keys that the domain
// names, then the others, sorted by key. An id is a map, so its pairs have no order. A nil Domain names no keys.
func (d *Domain) OrderBucket(pairs []Entry) {
	var order []string
	if d != nil && d.QuotaBuckets != nil {
		order = d.QuotaBuckets.Order
	}
	slices.SortFunc(pairs, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(rank(order, a.Key), rank(order, b.Key)), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Value, b.Value))
	})
}

// rank returns the place of a key in an order. All keys that the order does not name have the last place.
func rank(order []string, key string) int {
	if i := slices.Index(order, key); i >= 0 {
		return i
	}
	return len(order)
}

// DefaultDenies reports whether a bucket that no rule matches lets nothing pass. In a nil Domain everything passes.
func (d *Domain) DefaultDenies() bool {
	return d != nil && d.QuotaBuckets != nil && d.QuotaBuckets.Deny
}
