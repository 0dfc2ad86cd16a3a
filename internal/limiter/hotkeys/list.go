package hotkeys

import (
	"cmp"
	"slices"
)

// keyHits holds bounds for the hits of keys: for each entry, and with floor an upper bound for every other key.
type keyHits struct {
	hits    uint64 // exact number of hits of all keys
	floor   uint64
	entries []hitBounds
}

// hitBounds are the bounds of one key.
type hitBounds struct {
	hash        uint64
	least, most uint64
	text        string
	cut         bool
}

// list returns the counts of the summary.
func (s *summary) list() keyHits {
	l := keyHits{hits: s.hits, floor: s.floor()}
	if s.used > 0 {
		l.entries = make([]hitBounds, s.used)
	}
	for i := range l.entries {
		of, count := &s.slots[i], s.counts[i]
		l.entries[i] = hitBounds{hash: of.hash, least: count - of.err, most: count, text: of.text.String(), cut: of.text.cut}
	}
	return l
}

// sum combines lists of different uses. The result has at most as many keys as a summary.
func sum(lists []keyHits) keyHits {
	var all keyHits
	busy := 0
	for i := range lists {
		all.hits = plus(all.hits, lists[i].hits)
		all.floor = plus(all.floor, lists[i].floor)
		if len(lists[i].entries) > 0 {
			busy++
			all.entries = lists[i].entries
		}
	}
	if busy > 1 {
		all.entries = added(lists, all.floor)
	}
	if len(all.entries) > slots {
		slices.SortFunc(all.entries, func(a, b hitBounds) int { return cmp.Compare(b.most, a.most) })
		all.floor = all.entries[slots].most
		all.entries = slices.Clone(all.entries[:slots]) // frees the others
	}
	return all
}

// added adds up the entries of each key. In a list without the key, its hits were between 0 and that list's floor.
func added(lists []keyHits, floor uint64) []hitBounds {
	places := make(map[uint64]int)
	var entries []hitBounds
	for i := range lists {
		for _, e := range lists[i].entries {
			at, known := places[e.hash]
			if !known {
				at = len(entries)
				places[e.hash] = at
				entries = append(entries, hitBounds{hash: e.hash, most: floor, text: e.text, cut: e.cut})
			}
			entries[at].least = plus(entries[at].least, e.least)
			entries[at].most = plus(entries[at].most, e.most-lists[i].floor)
		}
	}
	return entries
}
