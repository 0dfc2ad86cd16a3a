package config

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// checksum identifies the rules in force. Two processes have the same checksum if their rules mean the same, even if they
// come from other files or from a server. It fits into the 53 bits of a float64; 0 means no rules.
func checksum(tree *descriptor.Tree) uint64 {
	if tree == nil {
		return 0
	}
	sum := uint64(0)
	for _, r := range tree.Rules {
		sum += hashRule(r, tree.Domain(r.Domain)) // the order of rules does not matter
	}
	return sum >> 11
}

// hashRule hashes everything that affects decisions: what a rule matches, what it limits, and how. Its position in a file
// and its internal representation are left out.
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
	_, _ = fmt.Fprint(h, r.Unlimited, r.Shadow, r.Quota, r.OnError, r.DetailedMetric, r.MetricValues, r.Metadata) // fmt prints the keys of a map in order
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
