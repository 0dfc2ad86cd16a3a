package transport

import "slices"

const (
	entryOverhead = 32 // bytes that count for an entry in addition to its name and value

	// leastEvicted is the size of evicted entries, in bytes, from which a table overwrites them. Envoy's trace contexts
	// evict a twentieth of it with each call.
	leastEvicted = 2 << 10

	// mostText is the largest capacity of a table's text, in bytes.
	mostText = 3 * hpackTable
)

// table is the dynamic table of HPACK: the fields defined by the blocks of a connection (RFC 7541, section 2.3.2).
//
// A client that traces replaces entries with each call, so entries have no separate memory: names and values follow
// each other in text, and the text of evicted entries is overwritten. This only happens between blocks. Within a block,
// text only grows, so that a field that was looked up stays valid.
type table struct {
	text    []byte
	entries []field // oldest first
	first   int     // entries before it are evicted
	size    int     // bytes, with overhead
	most    int     // largest size
}

// entry returns an entry, or nil. Index 1 is the newest one.
func (t *table) entry(index uint64) *field {
	if index > uint64(len(t.entries)-t.first) {
		return nil
	}
	return &t.entries[len(t.entries)-int(index)]
}

// add adds an entry. An entry larger than the table empties it.
func (t *table) add(text []byte, f *field) {
	t.shrink(t.most - f.size())
	if f.size() > t.most {
		return
	}
	if len(t.entries) == cap(t.entries) {
		t.forget()
	}
	e := *f
	e.at = uint32(len(t.text))
	t.entries = append(t.entries, e)
	t.text = append(t.text, text[f.at:f.at+f.name+f.value]...)
	t.size += f.size()
}

// resize sets the largest size of the table.
func (t *table) resize(most int) {
	t.most = most
	t.shrink(most)
}

// shrink evicts the oldest entries until the table has at most this many bytes.
func (t *table) shrink(most int) {
	for t.size > max(most, 0) {
		e := &t.entries[t.first]
		t.size -= e.size()
		t.first++
	}
}

// compact overwrites the text of evicted entries, if it is long enough.
func (t *table) compact() {
	live := t.text[len(t.text):]
	if t.first < len(t.entries) {
		live = t.text[t.entries[t.first].at:]
	}
	evicted := len(t.text) - len(live)
	if evicted < leastEvicted {
		return
	}
	t.forget()
	for i := range t.entries {
		t.entries[i].at -= uint32(evicted)
	}
	t.text = t.text[:copy(t.text, live)]
	if cap(t.text) > mostText {
		t.text = slices.Clone(t.text)
	}
}

// forget removes evicted entries from the list.
func (t *table) forget() {
	t.entries = t.entries[:copy(t.entries, t.entries[t.first:])]
	t.first = 0
}
