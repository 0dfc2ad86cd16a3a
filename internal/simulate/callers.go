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

// callers counts by caller, exactly as long as there are no more of them than it may hold. Then it drops the half that
// matters least, into one row for all others: first those whose verdicts do not change and that were never refused, and
// of these those that ask least. Whoever comes back is counted anew; by how much the count may then be too small is kept
// with it.
//
// Rows are found by a hash of 64 bits with a seed that nobody knows, without comparing names: that halves the time, and
// ten million callers have one chance in ten million to take one for another.
type callers struct {
	max     int
	seed    maphash.Seed
	rows    map[uint64]*callerRow
	dropped int64 // rows, of which some may be of one caller
	others  callerRow
}

type callerRow struct {
	name              string
	requests, refused int64
	old               int64 // refused by the rules that are compared with
	newly, passed     int64 // refused now and not before, and the other way round
	by, byNewly       blame // what refused it, and what newly refused it
	byOld             blame // what refused it by the rules that are compared with
	first             int64 // when it was first refused, or newly refused if rules are compared; 0: never
	missed            int64 // requests that may have been dropped before
}

func newCallers(most int) *callers {
	return &callers{max: most, seed: maphash.MakeSeed(), rows: make(map[uint64]*callerRow)}
}

// row finds or makes the row of a caller.
func (c *callers) row(name []byte) *callerRow {
	h := maphash.Bytes(c.seed, name)
	if r := c.rows[h]; r != nil {
		return r
	}
	if len(c.rows) >= c.max {
		c.dropHalf()
	}
	r := &callerRow{name: shortName(name), missed: c.others.missed}
	c.rows[h] = r
	return r
}

// maxCaller is how many bytes of a caller's name are kept; of a longer one a hash tells the rest.
const maxCaller = 200

func shortName(name []byte) string {
	if len(name) <= maxCaller {
		return string(name)
	}
	h := fnv.New64a()
	_, _ = h.Write(name) // never fails
	return fmt.Sprintf("%s...#%x", bytes.ToValidUTF8(name[:maxCaller], nil), h.Sum64())
}

// byWeight sorts who matters most first.
func byWeight(a, b *callerRow) int {
	return cmp.Or(
		cmp.Compare(b.newly, a.newly),
		cmp.Compare(b.passed, a.passed),
		cmp.Compare(b.refused, a.refused),
		cmp.Compare(b.old, a.old),
		cmp.Compare(b.requests, a.requests),
		strings.Compare(a.name, b.name),
	)
}

func (c *callers) sorted() []*callerRow {
	all := slices.Collect(maps.Values(c.rows))
	slices.SortFunc(all, byWeight)
	return all
}

func (c *callers) dropHalf() {
	all := c.sorted()
	for _, r := range all[len(all)/2:] {
		c.dropped++
		c.others.requests += r.requests
		c.others.refused += r.refused
		c.others.old += r.old
		c.others.newly += r.newly
		c.others.passed += r.passed
		c.others.missed = max(c.others.missed, r.requests+r.missed)
		r.name = "" // marks it
	}
	maps.DeleteFunc(c.rows, func(_ uint64, r *callerRow) bool { return r.name == "" })
}
