package assigner

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// A client can name any number of buckets that no rule matches. So they are not kept: each report is answered with an
// assignment that lasts for a few reports. If a rule is added later, it applies with the client's next report.

// shortTTL is the lifetime of such an assignment: three reports.
const shortTTL = 15 * time.Second

const (
	bytesOfBucket       = 300 // including its places in maps and lists
	bytesOfEntry        = 64  // kept for an entry of a bucket's id, without the texts: twice a descriptor.Entry
	bytesOfPool         = 1150
	bytesOfSubscription = 700
	bytesOfAction       = 128

	longKey = 600 // longest key of a counter, in bytes: longer keys are hashed
)

// bytes returns the size of a bucket, without its pool.
func (b *bucket) bytes() int { return bytesOfBucket + len(b.key) + bytesOfEntry*len(b.id) }

// bytes returns the size of a pool.
func (p *pool) bytes() int { return bytesOfPool + len(p.key) }

// bytes returns the size of an action that waits to be sent.
func (a *Action) bytes() int {
	n := bytesOfAction
	for i := range a.ID {
		n += bytesOfEntry/2 + len(a.ID[i].Key) + len(a.ID[i].Value)
	}
	return n
}

// hasRoom reports whether a stream may use more bytes. A small stream (1/8192 of all bytes) may use any free bytes.
// Other streams leave a quarter of all bytes free, enough for 2,000 small ones, and may use at most half of the rest.
// So a single stream uses at most three eighths of all.
func (s *Stream) hasRoom(more int) bool {
	most := s.a.o.MaxBytes
	free := int(min(int64(most-s.a.bytes), s.a.o.Room.Free())) - more
	if s.bytes+more <= most/fewOfAll && free >= 0 || s.bytes+more <= free-most/4 {
		return true
	}
	s.a.metrics.rejected.WithLabelValues("bytes").Inc()
	return false
}

// fewOfAll is the divisor of all bytes that gives the size of a small stream: about ten buckets.
const fewOfAll = 8192

// trim frees the scratch buffer if a long id has enlarged it.
func (s *Stream) trim() {
	if cap(s.key) > 1024 {
		s.key = nil
	}
}

// keep adds to the bytes of a stream; a negative number subtracts.
func (s *Stream) keep(bytes int) {
	s.bytes += bytes
	s.a.keep(bytes)
}

// entriesOf decodes the n entries of an id that appendID has encoded. Their strings are parts of id.
func entriesOf(id string, n int) []descriptor.Entry {
	all := make([]descriptor.Entry, n)
	text := func() (t string) {
		size, n := 0, 0
		for shift := 0; ; shift += 7 {
			c := id[n]
			n++
			if size |= int(c&0x7f) << shift; c < 0x80 {
				break
			}
		}
		t, id = id[n:n+size], id[n+size:]
		return t
	}
	for i := range all {
		id = id[1:]
		all[i] = descriptor.Entry{Key: text(), Value: text()}
	}
	return all
}

// reportNew applies the usages of s.unknown: it subscribes to buckets that a rule matches, and answers the others.
// Matching takes time if rules have expressions, so it runs without the lock.
func (s *Stream) reportNew(now time.Time, domain string, some []Usage, sweep bool) {
	if len(s.unknown) == 0 {
		return
	}
	a := s.a
	kinds := make([]quota.Kind, len(s.unknown)) // None if the bucket is kept
	if tree := a.o.Limiter.Tree(); tree != nil {
		d := tree.Domain(domain)
		var ordered []descriptor.Entry
		for i, k := range s.unknown {
			ordered = append(ordered[:0], some[k].ID...)
			d.OrderBucket(ordered)
			kinds[i] = a.withoutKeeping(d, ordered)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.closed {
		return
	}
	defer s.trim()
	for i, k := range s.unknown {
		u := &some[k]
		if kinds[i] != quota.None {
			s.answer(u.ID, kinds[i], sweep && u.Allowed == 0 && u.Denied == 0)
			continue
		}
		if s.report(now, u) { // the bucket is twice in the report
			continue
		}
		sub := s.subscribe(now, u)
		if sub == nil {
			continue
		}
		if sub.back = u.Elapsed >= time.Second || s.full && now.Sub(s.opened) < time.Second; sub.back {
			took := max(u.Elapsed, renewEvery).Seconds()
			sub.rate = float64(u.Allowed) / took
			sub.demand = sub.rate + float64(u.Denied)/took
		}
		s.use(now, sub, u)
		if sub.bucket.pool != nil {
			a.enter(now, sub)
		}
	}
}

// withoutKeeping returns the assignment of a bucket that is not kept, because no rule matches it or its id is too long.
// It returns None if the bucket is kept.
func (a *Assigner) withoutKeeping(d *descriptor.Domain, ordered []descriptor.Entry) quota.Kind {
	var rule *descriptor.Rule
	if d != nil {
		rule = d.Match(ordered)
	}
	if rule == nil {
		return unmatched(d)
	}
	size := 0
	for i := range ordered {
		size += len(ordered[i].Key) + len(ordered[i].Value)
	}
	switch {
	case size <= a.o.MaxIDBytes:
		return quota.None
	case rule.Unlimited || rule.Shadow:
		return quota.AllowAll
	default: // padding must not bypass a limit
		a.metrics.rejected.WithLabelValues("id").Inc()
		return quota.DenyAll
	}
}

// unmatched returns the assignment of a bucket that no rule matches.
func unmatched(d *descriptor.Domain) quota.Kind {
	if d.DefaultDenies() {
		return quota.DenyAll
	}
	return quota.AllowAll
}

// answer queues an assignment for a bucket that is not kept, or tells the client to forget it.
func (s *Stream) answer(id []descriptor.Entry, kind quota.Kind, abandon bool) {
	act := Action{ID: id, Abandon: abandon}
	if !abandon {
		act.Assignment = quota.Assignment{Kind: kind, TTL: shortTTL}
	}
	if s.closed || !s.hasRoom(act.bytes()) {
		return // the client will report again
	}
	s.key = appendID(s.key[:0], id)
	act.ID = entriesOf(string(s.key), len(id)) // id is reused after the report
	s.unkept = append(s.unkept, act)
	s.keep(act.bytes())
	s.rouse()
}

// takeUnkept appends such actions to all, and returns their bytes.
func (s *Stream) takeUnkept(all []Action) (_ []Action, size int) {
	n := 0
	for n < len(s.unkept) && len(all) < most && size < mostBytes {
		act := &s.unkept[n]
		n++
		size += act.bytes()
		all = append(all, *act)
	}
	clear(s.unkept[:n])
	if s.unkept = s.unkept[n:]; len(s.unkept) == 0 {
		s.unkept = nil
	}
	s.sending += size // counts until it is written
	return all, size
}

// dropUnkept drops the actions that were not sent.
func (s *Stream) dropUnkept() {
	for i := range s.unkept {
		s.keep(-s.unkept[i].bytes())
	}
	s.unkept = nil
}

// release forgets a bucket that no rule matches any longer.
func (a *Assigner) release(now time.Time, b *bucket, d *descriptor.Domain) {
	for n := len(b.subscriptions); n > 0; n = len(b.subscriptions) {
		sub := b.subscriptions[n-1]
		s, was := sub.stream, sub.state
		s.drop(now, sub)
		if was == active {
			s.answer(b.id, unmatched(d), false)
		}
	}
}
