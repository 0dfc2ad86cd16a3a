package simulate

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// customers counts by customer. Counts are exact while there are no more customers than it may hold. Then it moves the
// less important half into one row for all others: customers that were never denied and whose verdicts do not change,
// starting with the customers that made the fewest requests. A customer that returns starts a new row. It also has the
// largest number of requests that its count may miss.
//
// Rows are found by a 64-bit hash with a secret seed, without comparing names, which halves the time. Among ten million
// customers the probability of a collision is less than one in a hundred thousand.
type customers struct {
	max     int
	seed    maphash.Seed
	rows    map[uint64]*customerRow
	dropped int64 // dropped rows; several may be of one customer
	others  customerRow
}

type customerRow struct {
	name             string
	requests, denied int64
	old              int64 // denied by the old rules
	newly, passed    int64 // denied only by the new rules, and only by the old rules
	by, byNewly      blame // the limits that denied it, and the limits that newly denied it
	byOld            blame // the limits of the old rules that denied it
	first            int64 // time of the first denial, or of the first new denial if rules are compared; 0 if never denied
	missed           int64 // requests that an earlier, dropped row may have had
}

func newCustomers(most int) *customers {
	return &customers{max: most, seed: maphash.MakeSeed(), rows: make(map[uint64]*customerRow)}
}

// row returns the row of a customer, and makes it if necessary.
func (c *customers) row(name []byte) *customerRow {
	h := maphash.Bytes(c.seed, name)
	if r := c.rows[h]; r != nil {
		return r
	}
	if len(c.rows) >= c.max {
		c.dropHalf()
	}
	r := &customerRow{name: shortName(name), missed: c.others.missed}
	c.rows[h] = r
	return r
}

// maxCustomer is how many bytes of a customer's name are kept; a hash replaces the rest of a longer one.
const maxCustomer = 200

func shortName(name []byte) string {
	if len(name) <= maxCustomer {
		return string(name)
	}
	h := fnv.New64a()
	_, _ = h.Write(name) // never fails
	return fmt.Sprintf("%s...#%x", bytes.ToValidUTF8(name[:maxCustomer], nil), h.Sum64())
}

// byWeight sorts the most important customers first.
func byWeight(a, b *customerRow) int {
	return cmp.Or(
		cmp.Compare(b.newly, a.newly),
		cmp.Compare(b.passed, a.passed),
		cmp.Compare(b.denied, a.denied),
		cmp.Compare(b.old, a.old),
		cmp.Compare(b.requests, a.requests),
		strings.Compare(a.name, b.name),
	)
}

func (c *customers) sorted() []*customerRow {
	all := slices.Collect(maps.Values(c.rows))
	slices.SortFunc(all, byWeight)
	return all
}

func (c *customers) dropHalf() {
	all := c.sorted()
	for _, r := range all[len(all)/2:] {
		c.dropped++
		c.others.requests += r.requests
		c.others.denied += r.denied
		c.others.old += r.old
		c.others.newly += r.newly
		c.others.passed += r.passed
		c.others.missed = max(c.others.missed, r.requests+r.missed)
		r.name = "" // marks it
	}
	maps.DeleteFunc(c.rows, func(_ uint64, r *customerRow) bool { return r.name == "" })
}
