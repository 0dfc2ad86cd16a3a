package override

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math"
	"math/bits"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Set is the part of all overrides that decisions need. The zero value is empty.
type Set struct {
	Version int64 // version of the source
	shards  []shard
	count   int
	size    int    // bytes of all identities
	sum     uint64 // sum of the members' sums
	named   bool   // an override of one limit is, or was, among them
}

// perShard is about how many overrides a shard has. A change copies one shard, and a lookup reads the hashes of one.
const perShard = 8

// seed is one for all sets, because a set shares shards with the set before.
var seed = maphash.MakeSeed()

// Change is an override that is written or removed.
type Change struct {
	Identity Identity
	Numbers  Numbers // without a Kind: the override is removed
}

// NewSet returns a set of overrides. Of several with the same identity, the last one counts.
func NewSet(version int64, all iter.Seq2[*Identity, Numbers]) *Set {
	s := &Set{Version: version}
	var b builder
	for identity, numbers := range all {
		s.named = s.named || identity.Limit != ""
		b.put(identity, numbers)
	}
	b.into(s)
	return s
}

// Len returns the number of overrides.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.count
}

// Named reports whether there may be overrides that name one limit of a rule.
func (s *Set) Named() bool { return s != nil && s.named }

// With returns the set after changes.
func (s *Set) With(version int64, changes []Change) *Set {
	next := &Set{Version: version, count: s.count, size: s.size, sum: s.sum, named: s.named,
		shards: slices.Clone(s.shards)}
	if len(next.shards) == 0 {
		next.shards = make([]shard, 1)
	}
	var scratch []byte
	for i := range changes {
		c := &changes[i]
		next.named = next.named || c.Identity.Limit != ""
		scratch = c.Identity.appendTo(scratch[:0])
		h := maphash.Bytes(seed, scratch)
		next.change(h, scratch, c.Numbers)
	}
	if next.count > 2*perShard*len(next.shards) {
		next.grow()
	}
	return next
}

func (s *Set) change(h uint64, identity []byte, numbers Numbers) {
	sh := &s.shards[h&uint64(len(s.shards)-1)]
	members := sh.members()
	if i := sh.find(h, identity); i >= 0 {
		s.sum -= members[i].sum()
		members = slices.Delete(members, i, i+1)
		s.size -= len(identity)
		s.count--
	}
	if numbers.Kind != 0 {
		members = append(members, member{h, identity, numbers})
		s.sum += members[len(members)-1].sum()
		s.size += len(identity)
		s.count++
	}
	*sh = newShard(members)
}

// grow spreads the overrides over more shards.
func (s *Set) grow() {
	var b builder
	for _, sh := range s.shards {
		b.members = append(b.members, sh.members()...)
	}
	b.into(s)
}

// Find returns the numbers for one limit of a rule, and for a descriptor with these entries, if an override is active
// at now, in seconds since the Unix epoch. Otherwise they have no Kind. scratch is memory to work in; Find returns it,
// perhaps grown.
func (s *Set) Find(scratch []byte, rule *descriptor.Rule, limit string, entries []descriptor.Entry,
	now int64) (n Numbers, _ []byte) {
	if s.Len() == 0 {
		return Numbers{}, scratch
	}
	scratch = appendIdentity(scratch[:0], rule.Domain, rule.Path, limit, entries)
	if n = s.get(scratch); !n.InForce(now) {
		n = Numbers{}
	}
	return n, scratch
}

// Get returns the numbers of one override, active or not, or nil if it does not exist.
func (s *Set) Get(i *Identity) *Numbers {
	if s.Len() == 0 {
		return nil
	}
	if n := s.get(i.appendTo(nil)); n.Kind != 0 {
		return &n
	}
	return nil
}

func (s *Set) get(identity []byte) Numbers {
	h := maphash.Bytes(seed, identity)
	sh := s.shards[h&uint64(len(s.shards)-1)]
	if i := sh.find(h, identity); i >= 0 {
		return sh.numbers(i)
	}
	return Numbers{}
}

// Each yields every override, in no order, including those that are not active.
func (s *Set) Each() iter.Seq2[Identity, Numbers] {
	return func(yield func(Identity, Numbers) bool) {
		if s == nil {
			return
		}
		for _, sh := range s.shards {
			for i := range sh.len() {
				if !yield(readIdentity(sh.identity(i)), sh.numbers(i)) {
					return
				}
			}
		}
	}
}

// Ended returns at most n overrides that ended at or before a time, in seconds since the Unix epoch.
func (s *Set) Ended(at int64, n int) (all []Identity) {
	if s == nil {
		return nil
	}
	for _, sh := range s.shards {
		for i := range sh.len() {
			if end := sh.numbers(i).ExpiresAt; end == 0 || end > at {
				continue
			}
			if len(all) == n {
				return all
			}
			all = append(all, readIdentity(sh.identity(i)))
		}
	}
	return all
}

// Sum returns a checksum of all overrides, active or not. It is the same in every replica that has the same
// overrides.
func (s *Set) Sum() uint64 {
	if s == nil {
		return 0
	}
	return s.sum
}

// Span returns a time around now in which the same overrides are active, from its first second to the first after it.
func (s *Set) Span(now int64) (from, until int64) {
	from, until = math.MinInt64, math.MaxInt64
	if s == nil {
		return from, until
	}
	for _, sh := range s.shards {
		for i := range sh.len() {
			n := sh.numbers(i)
			for _, t := range [...]int64{n.NotBefore, n.ExpiresAt} {
				switch {
				case t == 0:
				case t <= now:
					from = max(from, t)
				default:
					until = min(until, t)
				}
			}
		}
	}
	return from, until
}

// Bytes returns about how much memory the set uses.
func (s *Set) Bytes() int {
	const perSlice, rounding = 24, 32 // the allocator rounds up to size classes: on average, half of a step is lost
	return s.count*(hashSize+itemSize) + s.size + len(s.shards)*(perSlice+headSize+rounding)
}

// builder gathers the overrides of a new set.
type builder struct {
	members []member
	data    []byte // memory for identities
}

func (b *builder) put(identity *Identity, numbers Numbers) {
	if cap(b.data)-len(b.data) < 1<<10 {
		b.data = make([]byte, 0, 1<<20) // the identities before stay where they are
	}
	start := len(b.data)
	b.data = identity.appendTo(b.data)
	id := b.data[start:]
	b.members = append(b.members, member{maphash.Bytes(seed, id), id, numbers})
}

// into fills a set with the gathered overrides.
func (b *builder) into(s *Set) {
	n := 1 << bits.Len(uint(len(b.members)/perShard))
	mask := uint64(n - 1)
	// ends[i+1] first counts the members of shard i, then ends[i] is the start of shard i, and finally its end
	ends := make([]int, n+1)
	for i := range b.members {
		ends[b.members[i].hash&mask+1]++
	}
	for i := range n {
		ends[i+1] += ends[i]
	}
	order := make([]int32, len(b.members))
	for i := range b.members {
		at := &ends[b.members[i].hash&mask]
		order[*at] = int32(i)
		*at++
	}
	s.shards, s.count, s.size, s.sum = make([]shard, n), 0, 0, 0
	var own []member
	for i, start := 0, 0; i < n; i, start = i+1, ends[i] {
		own = own[:0]
		for _, j := range order[start:ends[i]] {
			m := b.members[j]
			if before := slices.IndexFunc(own, m.same); before >= 0 {
				own = slices.Delete(own, before, before+1)
			}
			own = append(own, m)
		}
		s.shards[i] = newShard(own)
		s.count += len(own)
		for j := range own {
			s.size += len(own[j].identity)
			s.sum += own[j].sum()
		}
	}
}

func (i *Identity) appendTo(b []byte) []byte {
	return appendIdentity(b, i.Domain, i.Rule, i.Limit, i.Entries)
}

// appendIdentity appends an identity in the form that sets compare: each text after its length.
func appendIdentity(b []byte, domain, rule, limit string, entries []descriptor.Entry) []byte {
	b = appendText(b, domain)
	b = appendText(b, rule)
	b = appendText(b, limit)
	for i := range entries {
		b = appendText(b, entries[i].Key)
		b = appendText(b, entries[i].Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func readIdentity(b []byte) Identity {
	next := func() string {
		n, size := binary.Uvarint(b)
		text := string(b[size : size+int(n)])
		b = b[size+int(n):]
		return text
	}
	i := Identity{Domain: next(), Rule: next(), Limit: next()}
	for len(b) > 0 {
		i.Entries = append(i.Entries, descriptor.Entry{Key: next(), Value: next()})
	}
	return i
}
