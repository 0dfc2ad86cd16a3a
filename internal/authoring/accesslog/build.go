package accesslog

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Arena is memory for the requests of many lines, so that a single request needs no allocation.
type Arena struct {
	descriptors []limiter.Descriptor
	entries     []descriptor.Entry
	customers   []byte
}

// Reset empties the arena. Requests that were built in it must not be used afterwards.
func (a *Arena) Reset() {
	clear(a.descriptors)
	clear(a.entries) // so that the garbage collector can free their texts
	a.descriptors, a.entries, a.customers = a.descriptors[:0], a.entries[:0], a.customers[:0]
}

// Request is the request made from a line.
type Request struct {
	limiter.Request
	Customer []byte // the customer; part of the arena
}

// Build makes the request for a line. fields are Record.Fields as texts. The parts of the request belong to the arena.
// It returns false if the line is skipped: a condition does not hold, or no descriptor is left.
//
// As with the actions of Envoy's rate limit filter, an entry whose value is absent leaves its whole descriptor out.
func (m *Mapping) Build(fields []string, hits []uint64, a *Arena, req *Request) bool {
	*req = Request{}
	if !allHold(m.when, fields) {
		return false
	}
	if req.Domain = m.domain.of(fields); req.Domain == "" {
		return false
	}
	first := len(a.descriptors)
	for i := range m.descriptors {
		d := &m.descriptors[i]
		entries, ok := d.build(fields, a)
		if !ok {
			continue
		}
		built := limiter.Descriptor{Entries: entries}
		if d.hits != nil {
			built.Hits, built.HasHits = hits[i], true
		}
		a.descriptors = append(a.descriptors, built)
	}
	req.Descriptors = a.descriptors[first:len(a.descriptors):len(a.descriptors)]
	if len(req.Descriptors) == 0 {
		return false
	}
	start := len(a.customers)
	m.appendCustomer(fields, a)
	req.Customer = a.customers[start:len(a.customers):len(a.customers)]
	return true
}

func (d *descriptorMap) build(fields []string, a *Arena) ([]descriptor.Entry, bool) {
	if !allHold(d.when, fields) {
		return nil, false
	}
	first := len(a.entries)
	for i := range d.entries {
		e := &d.entries[i]
		v := e.value.of(fields)
		if v == "" {
			if e.skipIfAbsent {
				continue
			}
			a.entries = a.entries[:first]
			return nil, false
		}
		a.entries = append(a.entries, descriptor.Entry{Key: e.key, Value: v})
	}
	return a.entries[first:len(a.entries):len(a.entries)], len(a.entries) > first
}

// noCustomer is the customer of lines that do not name one.
const noCustomer = "(none)"

// appendCustomer appends the customer: the value that the mapping sets, else every distinct entry that comes from the
// log.
func (m *Mapping) appendCustomer(fields []string, a *Arena) {
	if m.customer != nil {
		if c := m.customer.of(fields); c != "" {
			a.customers = append(a.customers, c...)
			return
		}
		a.customers = append(a.customers, noCustomer...)
		return
	}
	start := len(a.customers)
	for i := range m.customerEntries {
		e := &m.customerEntries[i]
		v := e.value.of(fields)
		if v == "" {
			continue
		}
		if len(a.customers) > start {
			a.customers = append(a.customers, ", "...)
		}
		a.customers = append(a.customers, e.key...)
		a.customers = append(a.customers, '=')
		a.customers = append(a.customers, v...)
	}
	if len(a.customers) == start {
		a.customers = append(a.customers, "(all)"...)
	}
}

// SetCustomer identifies customers by the entries with these keys, instead of the mapping's. It must not be called
// while lines are read.
func (m *Mapping) SetCustomer(keys []string) error {
	var chosen []entryMap
	var known []string
	for _, e := range m.customerEntries {
		if !slices.Contains(known, e.key) {
			known = append(known, e.key)
		}
	}
	for _, key := range keys {
		if !slices.Contains(known, key) {
			return fmt.Errorf("no descriptor has an entry %q that comes from the log; there are %s", key,
				yamlform.List(known, "and"))
		}
		for _, e := range m.customerEntries {
			if e.key == key {
				chosen = append(chosen, e)
			}
		}
	}
	m.customer, m.customerEntries = nil, chosen
	return nil
}

// parse reads the number of hits. ok is false if the text is not a number of hits.
func (h *hitsMap) parse(fields [][]byte) (n uint64, ok bool) {
	if h.field < 0 || len(fields[h.field]) == 0 {
		return h.fallback, true
	}
	n, err := strconv.ParseUint(string(fields[h.field]), 10, 32)
	return n, err == nil
}
