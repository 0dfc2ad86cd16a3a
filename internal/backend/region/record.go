package region

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Records are how a Redis keeps the values of this package: a letter for the kind, the version of the form, and then numbers, most of
// them as varints. Times of grants are written as differences to a time that is near them.
//
// A reader believes nothing. What is not a record of its kind and version, or has numbers that the arithmetic cannot have made, is an
// error, and the record counts as lost, as if its Redis had been flushed: that is safe.

// versionOf returns the version of the encoding of a kind's records. An encoding that earlier replicas cannot read gets a new version.
// While both versions run, records of the other version count as lost.
func versionOf(kind byte) byte {
	switch kind {
	case 'A', 'M':
		return 2
	}
	return 1
}

// errRecord is the error of all records that cannot be read.
var errRecord = errors.New("not a record of a limit across regions")

// latest is the latest time of a record, apart from never. It leaves room for sums.
const latest = 1 << 60

// AppendRecord appends the record of an account.
func (a *Account) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'A')}
	w.word(a.Incarnation)
	w.count(a.Epoch)
	w.count(a.Generation)
	w.number(a.Seen)
	w.flags(a.Waiting, a.Full)
	w.number(a.AskedAt - a.Seen)
	w.number(a.SentAt - a.Seen)
	w.number(a.Again - a.Seen)
	w.number(a.Remaining)
	w.count(a.Limit)
	w.demand(&a.demand, a.Seen)
	w.grants(a.Grants, a.Incarnation, a.Seen)
	w.count(a.Question.Number)
	if a.Waiting { // otherwise only the number matters
		w.question(&a.Question, a.Incarnation, a.Seen)
	}
	w.word(a.Rules)
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (a *Account) ReadRecord(b []byte) error {
	r := read(b, 'A')
	*a = Account{Incarnation: r.word(), Epoch: r.count(), Generation: r.count(), Seen: r.time(0)}
	r.flags(&a.Waiting, &a.Full)
	a.AskedAt, a.SentAt, a.Again = r.time(a.Seen), r.time(a.Seen), r.time(a.Seen)
	a.Remaining, a.Limit = r.amount(), r.count()
	a.demand = r.demand(a.Seen)
	a.Grants = r.grants(a.Incarnation, a.Seen)
	a.Question.Number = r.count()
	if a.Waiting {
		r.question(&a.Question, a.Incarnation, a.Seen)
	}
	a.Rules = r.word()
	return r.end()
}

// AppendRecord appends the record of a counter.
func (c *Counter) AppendRecord(b []byte) []byte {
	w := writer{begin(b, c.kind())}
	if c.Shares.Begun {
		w.text(string(c.Shares.AppendRecord(nil)))
	}
	base := c.State.Start
	w.state(&c.State)
	w.count(c.Epoch)
	w.number(c.From)
	w.number(c.Learning)
	w.count(uint64(len(c.Peers)))
	for i := range c.Peers {
		p := &c.Peers[i]
		w.text(p.Region)
		w.word(p.Incarnation)
		w.count(p.Number)
		w.word(p.Nonce)
		w.word(p.Former)
		w.count(p.Settled)
		w.grants(p.Grants, p.Incarnation, base)
	}
	return w.b
}

// kind is that of the counter's record: the one of a bucket that was divided has its shares, too.
func (c *Counter) kind() byte {
	if c.Shares.Begun {
		return 'D'
	}
	return 'C'
}

// ReadRecord reads what AppendRecord has written.
func (c *Counter) ReadRecord(b []byte) error {
	kind := byte('C')
	if bytes.HasPrefix(b, []byte{'D'}) {
		kind = b[0]
	}
	r := read(b, kind)
	*c = Counter{}
	if kind == 'D' {
		if err := c.Shares.ReadRecord(r.bytes(r.length())); err != nil || !c.Shares.Begun {
			return errRecord
		}
	}
	c.State = r.state()
	base := c.State.Start
	c.Epoch, c.From, c.Learning = r.count(), r.time(0), r.time(0)
	n := r.length()
	for range n {
		p := Peer{Region: r.text(), Incarnation: r.word(), Number: r.count(), Nonce: r.word(), Former: r.word(), Settled: r.count()}
		p.Grants = r.grants(p.Incarnation, base)
		if k := len(c.Peers); k > 0 && c.Peers[k-1].Region >= p.Region {
			r.fail() // they are sorted
		}
		if r.failed {
			break
		}
		c.Peers = append(c.Peers, p)
	}
	return r.end()
}

// AppendRecord appends the record of a role.
func (r *Role) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'R')}
	w.count(r.Known)
	w.count(r.Epoch)
	w.count(r.Generation)
	w.number(r.From)
	w.count(uint64(len(r.Consents)))
	for i := range r.Consents {
		w.text(r.Consents[i].Region)
		w.number(r.Consents[i].Asked)
	}
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (r *Role) ReadRecord(b []byte) error {
	in := read(b, 'R')
	*r = Role{Known: in.count(), Epoch: in.count(), Generation: in.count(), From: in.timeOrNever()}
	for range in.length() {
		c := Consent{Region: in.text(), Asked: in.time(0)}
		if in.failed {
			break
		}
		r.Consents = append(r.Consents, c)
	}
	return in.end()
}

// AppendRecord appends the record of a bucket's shares.
func (s *Shares) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'S')}
	w.count(s.Epoch)
	w.number(s.From)
	w.flags(s.Begun)
	w.number(s.Saved)
	w.number(s.Part)
	w.number(s.SavedAt)
	w.number(s.Learning)
	w.count(uint64(len(s.Holders)))
	for i := range s.Holders {
		h := &s.Holders[i]
		w.text(h.Region)
		w.word(h.Incarnation)
		w.count(h.Number)
		w.word(h.Nonce)
		w.word(h.Former)
		for _, n := range [...]int64{h.Held, h.Given, h.Minted, h.Expires, h.Lost, h.LostExpires, h.Demand} {
			w.number(n)
		}
	}
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (s *Shares) ReadRecord(b []byte) error {
	r := read(b, 'S')
	*s = Shares{Epoch: r.count(), From: r.time(0)}
	r.flags(&s.Begun)
	s.Saved, s.Part, s.SavedAt, s.Learning = r.amount(), r.time(0), r.time(0), r.time(0)
	if s.Part < 0 {
		r.fail()
	}
	for range r.length() {
		h := Holder{Region: r.text(), Incarnation: r.word(), Number: r.count(), Nonce: r.word(), Former: r.word()}
		h.Held, h.Given, h.Minted, h.Expires = r.amount(), r.amount(), r.amount(), r.time(0)
		h.Lost, h.LostExpires, h.Demand = r.amount(), r.time(0), r.amount()
		if k := len(s.Holders); k > 0 && s.Holders[k-1].Region >= h.Region {
			r.fail()
		}
		if r.failed {
			break
		}
		s.Holders = append(s.Holders, h)
	}
	return r.end()
}

// AppendRecord appends the record of a region's part of a bucket.
func (h *Holding) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'H')}
	w.word(h.Incarnation)
	w.count(h.Epoch)
	w.count(h.Generation)
	w.number(h.Seen)
	returned := *h.returning()
	w.flags(h.Waiting, h.Full, returned != 0)
	w.number(h.Rate)
	w.number(h.Tokens)
	w.number(h.Expires - h.Seen)
	w.number(h.AskedAt - h.Seen)
	w.number(h.SentAt - h.Seen)
	w.demand(&h.demand, h.Seen)
	w.state(&h.State)
	q := &h.Question
	w.count(q.Number)
	if h.Waiting {
		w.text(q.Region)
		w.count(q.Epoch)
		w.word(q.Incarnation)
		w.word(q.Nonce)
		w.number(q.Held)
		w.number(q.Demand)
	}
	if returned != 0 { // for about a second after a part became smaller; replicas of earlier versions can read all other records
		w.number(returned)
	}
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (h *Holding) ReadRecord(b []byte) error {
	r := read(b, 'H')
	*h = Holding{Incarnation: r.word(), Epoch: r.count(), Generation: r.count(), Seen: r.time(0)}
	var returns bool
	r.flags(&h.Waiting, &h.Full, &returns)
	h.Rate, h.Tokens = r.amount(), r.amount()
	h.Expires, h.AskedAt, h.SentAt = r.time(h.Seen), r.time(h.Seen), r.time(h.Seen)
	h.demand = r.demand(h.Seen)
	h.State = r.state()
	q := &h.Question
	q.Number = r.count()
	if h.Waiting {
		q.Region, q.Epoch, q.Incarnation, q.Nonce, q.Held, q.Demand = r.text(), r.count(), r.word(), r.word(), r.amount(), r.amount()
	}
	if returns {
		n := r.amount()
		if n == 0 {
			r.fail()
		}
		*h.returning() = n
	}
	return r.end()
}

// returning points to the number of tokens that are being returned: by the question on its way, or else by the next one.
func (h *Holding) returning() *int64 {
	if h.Waiting {
		return &h.Question.Returned
	}
	return &h.Returned
}

func begin(b []byte, kind byte) []byte { return append(b, kind, versionOf(kind)) }

// writer appends the parts of a record.
type writer struct{ b []byte }

func (w *writer) word(n uint64)  { w.b = binary.LittleEndian.AppendUint64(w.b, n) } // random: a varint would be longer
func (w *writer) count(n uint64) { w.b = binary.AppendUvarint(w.b, n) }
func (w *writer) number(n int64) { w.b = binary.AppendVarint(w.b, n) }
func (w *writer) text(s string)  { w.count(uint64(len(s))); w.b = append(w.b, s...) }
func (w *writer) texts(all []string) {
	w.count(uint64(len(all)))
	for _, s := range all {
		w.text(s)
	}
}
func (w *writer) flags(all ...bool) {
	var f byte
	for i, set := range all {
		if set {
			f |= 1 << i
		}
	}
	w.b = append(w.b, f)
}

func (w *writer) demand(d *demand, base int64) {
	w.word(math.Float64bits(d.rate))
	w.number(d.count)
	w.number(d.since - base)
	w.number(d.last - base)
	w.number(d.size)
	w.number(d.asked - base)
}

func (w *writer) grants(all []Grant, incarnation uint64, base int64) {
	w.count(uint64(len(all)))
	for i := range all {
		g := &all[i]
		other := g.Incarnation != incarnation
		w.flags(other)
		if other {
			w.word(g.Incarnation)
		}
		w.count(g.Number)
		w.number(g.Permits)
		w.number(g.Used)
		w.number(g.Returned)
		w.number(g.Charged - base)
		w.number(g.Ends - g.Charged)
		w.number(g.Expires - base)
	}
}

func (w *writer) question(q *Question, incarnation uint64, base int64) {
	w.text(q.Region)
	w.count(q.Epoch)
	w.word(q.Incarnation)
	w.word(q.Nonce)
	w.number(q.Want)
	w.number(q.Need)
	w.grants(q.Grants, incarnation, base)
}

func (w *writer) state(s *backend.State) {
	w.number(s.Start)
	w.number(s.Count)
	w.number(s.Prev)
	w.count(uint64(len(s.Tail)))
	for _, n := range s.Tail {
		w.b = binary.LittleEndian.AppendUint32(w.b, n)
	}
}

// reader reads the parts of a record. After a failure everything is zero.
type reader struct {
	b      []byte
	failed bool
}

func read(b []byte, kind byte) *reader {
	if len(b) < 2 || b[0] != kind || b[1] != versionOf(kind) {
		return new(reader) // of nothing: it fails at once
	}
	return &reader{b: b[2:]}
}

func (r *reader) fail() { r.b, r.failed = nil, true }

// end returns the error of a record that cannot be read. Bytes that are left over make it another one.
func (r *reader) end() error {
	if r.failed || len(r.b) > 0 {
		return errRecord
	}
	return nil
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) word() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) count() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) number() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

// amount is a number of hits, or a rate.
func (r *reader) amount() int64 {
	n := r.number()
	if n < 0 || n > backend.MaxCount {
		r.fail()
		return 0
	}
	return n
}

// time is one that was written as a difference to base.
func (r *reader) time(base int64) int64 {
	n := base + r.number()
	if n < -latest || n > latest {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) timeOrNever() int64 {
	n := r.number()
	if n != never && (n < -latest || n > latest) {
		r.fail()
		return 0
	}
	return n
}

// length is how many elements follow. Each has at least one byte.
func (r *reader) length() uint64 {
	n := r.count()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return n
}

func (r *reader) text() string { return string(r.bytes(r.length())) }

func (r *reader) texts() (all []string) {
	for range r.length() {
		all = append(all, r.text())
	}
	return all
}

func (r *reader) flags(all ...*bool) {
	f := r.bytes(1)
	if f == nil || f[0]>>len(all) != 0 {
		r.fail()
		return
	}
	for i, set := range all {
		*set = f[0]>>i&1 != 0
	}
}

func (r *reader) demand(base int64) demand {
	d := demand{rate: math.Float64frombits(r.word()), count: r.number(), since: r.time(base), last: r.time(base), size: r.amount(), asked: r.time(base)}
	if !(d.rate >= 0 && d.rate <= backend.MaxCount) || d.count < 0 || d.count > latest {
		r.fail()
		return demand{}
	}
	return d
}

func (r *reader) grants(incarnation uint64, base int64) (all []Grant) {
	for range r.length() {
		g := Grant{Incarnation: incarnation}
		var other bool
		if r.flags(&other); other {
			g.Incarnation = r.word()
		}
		g.Number, g.Permits, g.Used, g.Returned = r.count(), r.amount(), r.amount(), r.amount()
		g.Charged = r.time(base)
		g.Ends = r.time(g.Charged)
		g.Expires = r.time(base)
		if g.rest() < 0 {
			r.fail()
		}
		if r.failed {
			return nil
		}
		all = append(all, g)
	}
	return all
}

func (r *reader) question(q *Question, incarnation uint64, base int64) {
	q.Region, q.Epoch, q.Incarnation, q.Nonce = r.text(), r.count(), r.word(), r.word()
	q.Want, q.Need = r.number(), r.number()
	if q.Want < -latest || q.Want > latest || q.Need < -latest || q.Need > latest {
		r.fail()
	}
	q.Grants = r.grants(incarnation, base)
}

func (r *reader) state() (s backend.State) {
	s.Start, s.Count, s.Prev = r.time(0), r.amount(), r.amount()
	n := r.length()
	if n == 0 {
		return s
	}
	tail := r.bytes(4 * n)
	if r.failed {
		return backend.State{}
	}
	s.Tail = make([]uint32, n)
	for i := range s.Tail {
		s.Tail[i] = binary.LittleEndian.Uint32(tail[4*i:])
	}
	return s
}
