package simulate

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Logs are nearly in order: a line is written when its request ends, but shows the time when it started. order sorts
// lines that are out of order by no more than a window of time.
//
// The window is a ring of slots. A line goes to the slot of its time. A slot is sorted and released when the newest
// time is a window ahead of it. So a line costs an append and a part of sorting a short list that is nearly sorted. A
// line older than the released ones is late: it is decided at the earliest time that is still open. Time never goes
// back.
type order struct {
	slots     []slot
	width     int64 // microseconds of a slot; 0 means one slot, in which lines stay in their order
	head      int64 // the number of the newest slot
	begun     bool
	newest    int64 // the newest time seen
	reordered int64 // lines that were older than the newest time, but not late
	late      Late

	held, text int // lines and bytes in all slots
	floor      int64
	shortened  int64 // how often the window was shortened to bound memory
	maxHeld    int
	maxText    int
	release    func(recs []record, text []byte) error
}

// Late describes lines that came too late to be sorted.
type Late struct {
	Lines  int64
	Most   int64 // the longest delay in microseconds
	Log    int   // the index of the log with the first one
	Number int   // its line
}

const slotCount = 64

// slot holds the lines of a part of the window.
type slot struct {
	recs []record
	text []byte // their fields
}

// record is a line that waits in a slot.
type record struct {
	at   int64 // microseconds since 1970
	seq  int64 // the position in the logs
	log  int32
	line int
	from int // start of its fields in the slot's text
}

func newOrder(window int64, release func([]record, []byte) error) *order {
	o := &order{release: release, maxHeld: 1 << 20, maxText: 256 << 20, slots: make([]slot, 1)}
	if window > 0 {
		o.width = (window + slotCount - 2) / (slotCount - 1)
		o.slots = make([]slot, slotCount)
	}
	return o
}

// add adds a line and copies its fields.
func (o *order) add(r record, fields [][]byte, hits []uint64) error {
	switch {
	case !o.begun:
		o.begun = true
		o.newest = r.at
		if o.width > 0 {
			o.head = r.at / o.width
		}
	case r.at > o.newest:
		o.newest = r.at
		if err := o.advance(); err != nil {
			return err
		}
	case r.at < o.newest:
		o.displaced(&r)
	}
	s := &o.slots[0]
	if o.width > 0 {
		s = &o.slots[(r.at/o.width)%slotCount]
	}
	r.from = len(s.text)
	s.text = appendFields(s.text, fields, hits)
	s.recs = append(s.recs, r)
	o.held++
	o.text += len(s.text) - r.from
	if o.width == 0 && len(s.recs) >= batchSize {
		return o.empty(s)
	}
	if o.held > o.maxHeld || o.text > o.maxText {
		return o.cutShort()
	}
	return nil
}

// displaced records a line that is older than an earlier one, and moves a late one to a time that is still open.
func (o *order) displaced(r *record) {
	open := o.newest
	if o.width > 0 {
		open = max(o.floor, (o.head-slotCount+1)*o.width)
	}
	if r.at >= open {
		o.reordered++
		return
	}
	if o.late.Lines++; o.late.Lines == 1 {
		o.late.Log, o.late.Number = int(r.log), r.line
	}
	o.late.Most = max(o.late.Most, open-r.at)
	r.at = open
}

// advance releases the slots that the newest time pushes out of the window.
func (o *order) advance() error {
	if o.width == 0 {
		return nil
	}
	head := o.newest / o.width
	for i := int64(0); o.head < head && i < slotCount; i++ {
		o.head++
		if err := o.empty(&o.slots[o.head%slotCount]); err != nil {
			return err
		}
	}
	o.head = head
	return nil
}

// cutShort releases the older half of the window, because there are too many lines to hold.
func (o *order) cutShort() error {
	o.shortened++
	for number := o.head - slotCount + 1; number <= o.head; number++ {
		if err := o.empty(&o.slots[((number%slotCount)+slotCount)%slotCount]); err != nil {
			return err
		}
		o.floor = (number + 1) * max(o.width, 1)
		if number == o.head || o.width == 0 {
			o.floor = o.newest
		}
		if o.held <= o.maxHeld/2 && o.text <= o.maxText/2 {
			return nil
		}
	}
	return nil
}

// flush releases everything.
func (o *order) flush() error {
	for i := int64(1); i <= int64(len(o.slots)); i++ {
		number := int64(0)
		if o.width > 0 {
			number = (o.head + i) % slotCount
		}
		if err := o.empty(&o.slots[number]); err != nil {
			return err
		}
	}
	return nil
}

func (o *order) empty(s *slot) error {
	if len(s.recs) == 0 {
		return nil
	}
	byTime := func(a, b record) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) }
	if o.width > 0 && !slices.IsSortedFunc(s.recs, byTime) {
		slices.SortFunc(s.recs, byTime)
	}
	err := o.release(s.recs, s.text)
	o.held -= len(s.recs)
	o.text -= len(s.text)
	if cap(s.text) > 16<<20 {
		*s = slot{} // frees the memory of a burst
		return err
	}
	s.recs, s.text = s.recs[:0], s.text[:0]
	return err
}

// appendFields appends fields, each preceded by its length, and hits.
func appendFields(b []byte, fields [][]byte, hits []uint64) []byte {
	for _, f := range fields {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	for _, h := range hits {
		b = binary.AppendUvarint(b, h)
	}
	return b
}

// readFields reads the output of appendFields; the fields are substrings of s.
func readFields(s string, fields []string, hits []uint64) {
	for i := range fields {
		n, rest := uvarint(s)
		fields[i], s = rest[:n], rest[n:]
	}
	for i := range hits {
		hits[i], s = uvarint(s)
	}
}

// uvarint is binary.Uvarint for a string that appendFields wrote.
func uvarint(s string) (n uint64, rest string) {
	for shift := 0; ; shift += 7 {
		b := s[0]
		s = s[1:]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n, s
		}
	}
}
