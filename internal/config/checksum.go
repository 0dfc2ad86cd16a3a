package config

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// checksum is a number that says which rules are in force: two processes have the same one if their rules mean the same,
// whichever files or server they come from. It fits into the 53 bits of a float64; 0 means no rules.
func checksum(tree *descriptor.Tree) uint64 {
	if tree == nil {
		return 0
	}
	sum := uint64(0)
	for _, r := range tree.Rules {
		sum += hashRule(r, tree.Domain(r.Domain)) // in any order
	}
	return sum >> 11
}

// hashRule is made of all that decides: what a rule matches, what it limits, and how. Neither its place in a file nor what
// it is made of inside.
func hashRule(r *descriptor.Rule, d *descriptor.Domain) uint64 {
	h := fnv.New64a()
	text := func(texts ...string) {
		for _, t := range texts {
			var length [8]byte
			binary.LittleEndian.PutUint64(length[:], uint64(len(t)))
			_, _ = h.Write(length[:]) // never fails
			_, _ = io.WriteString(h, t)
		}
	}
	text(r.Domain, r.Name)
	for _, l := range r.Levels {
		text(l.Key, l.Value, fmt.Sprint(l.Kind))
	}
	text(slices.Sorted(slices.Values(r.Replaces))...)
	_, _ = fmt.Fprint(h, r.Unlimited, r.Shadow, r.Quota, r.OnError, r.DetailedMetric, r.MetricValues, r.Metadata) // the keys of a map are in order
	for i := range r.Levels {
		_, _ = fmt.Fprint(h, r.Shares(i))
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		zone := ""
		if l.Window.Location != nil {
			zone = l.Window.Location.String()
		}
		text(l.Name, zone)
		_, _ = fmt.Fprint(h, l.Requests, int(l.Window.Unit), max(l.Window.Multiplier, 1), l.Window.Named, l.Algorithm, l.Burst, l.Interval, l.FirstHit, l.Precision, l.NoDelay, l.CountDenied, l.Lease)
	}
	if d != nil {
		_, _ = fmt.Fprint(h, d.Admission, d.OnError, d.Headers != nil)
		if d.Headers != nil {
			_, _ = fmt.Fprint(h, *d.Headers)
		}
	}
	return h.Sum64()
}
