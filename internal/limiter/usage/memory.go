package usage

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// Memory is a Store in the memory of one replica. The zero value is ready.
type Memory struct {
	mu      sync.Mutex
	domains map[string]*domainSets // keyed by the prefix that the names of a domain's sets share
	texts   int                    // number of texts in all sets
	bytes   int                    // memory of all texts, in bytes
	swept   time.Time              // when texts that had ended were last removed
}

// domainSets are the sets of one domain.
type domainSets struct {
	sets         map[string]map[string]int64
	texts, bytes int
}

const (
	maxTexts   = 200_000
	maxMemory  = 64 << 20 // bytes; a text may have 4 KiB
	perText    = 100      // overhead of a text in bytes, about
	sweepEvery = 10 * time.Second
)

// Add implements Store. If there are too many texts, new ones take the places of those of the domain that has most,
// unless that is their own.
func (m *Memory) Add(_ context.Context, now time.Time, sets map[string]map[string]int64) (dropped int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.domains == nil {
		m.domains = make(map[string]*domainSets)
	}
	if now.Sub(m.swept) >= sweepEvery {
		m.sweep(now)
	}
	for name, texts := range sets {
		d := m.of(name)
		if d == nil {
			d = &domainSets{sets: make(map[string]map[string]int64)}
			m.domains[domainOf(name)] = d
		}
		for text, end := range texts {
			old, known := d.sets[name][text]
			if !known {
				size := cost(name, text)
				lost, fits := m.makeRoom(d, size)
				dropped += lost
				if !fits {
					continue
				}
				m.count(d, 1, size)
			}
			if d.sets[name] == nil {
				d.sets[name] = make(map[string]int64)
			}
			d.sets[name][text] = max(old, end)
		}
	}
	return dropped, nil
}

// makeRoom makes room for a text of a domain, as long as another domain has more. It returns how many texts are lost,
// with that one if it does not fit.
func (m *Memory) makeRoom(d *domainSets, bytes int) (lost int, fits bool) {
	for m.texts >= maxTexts || m.bytes+bytes > maxMemory {
		lost++
		largest := m.largest()
		if largest.size() <= d.size() {
			return lost, false
		}
		m.removeAny(largest)
	}
	return lost, true
}

// domainOf is the part of a set's name that identifies its domain.
func domainOf(set string) string { return set[:min(domainBytes, len(set))] }

// of returns the sets of a set's domain, or nil.
func (m *Memory) of(set string) *domainSets { return m.domains[domainOf(set)] }

// cost is how many bytes a text of a set takes. The name of the set counts for each of its texts.
func cost(set, text string) int { return len(set) + len(text) + perText }

// size is the memory of a domain's texts. Many short ones weigh as much as few long ones that leave as little room.
func (d *domainSets) size() int { return max(d.bytes, d.texts*(maxMemory/maxTexts)) }

// largest returns the domain whose texts take most.
func (m *Memory) largest() (most *domainSets) {
	for _, d := range m.domains {
		if most == nil || d.size() > most.size() {
			most = d
		}
	}
	return most
}

func (m *Memory) count(d *domainSets, texts, bytes int) {
	m.texts, d.texts = m.texts+texts, d.texts+texts
	m.bytes, d.bytes = m.bytes+bytes, d.bytes+bytes
}

// removeAny removes one text of a domain.
func (m *Memory) removeAny(d *domainSets) {
	for name, texts := range d.sets {
		for text := range texts {
			m.remove(d, name, text)
			return
		}
	}
}

func (m *Memory) remove(d *domainSets, name, text string) {
	delete(d.sets[name], text)
	if len(d.sets[name]) == 0 {
		delete(d.sets, name)
	}
	m.count(d, -1, -cost(name, text))
}

func (m *Memory) sweep(now time.Time) {
	m.swept = now
	for domain, d := range m.domains {
		for name, texts := range d.sets {
			for text, end := range texts {
				if end < now.UnixMilli() {
					m.remove(d, name, text)
				}
			}
		}
		if len(d.sets) == 0 {
			delete(m.domains, domain)
		}
	}
}

// Page implements Store. Texts are in the order of their hashes, and a page ends between two of these.
func (m *Memory) Page(_ context.Context, now time.Time, set string, at uint64,
	count int) (page []string, next uint64, err error) {
	type hashed struct {
		hash uint64
		text string
	}
	var all []hashed
	var texts map[string]int64
	m.mu.Lock()
	if d := m.of(set); d != nil {
		texts = d.sets[set]
	}
	for text, end := range texts {
		if hash := maphash.String(seed, text) | 1; end >= now.UnixMilli() && hash > at { // never 0
			all = append(all, hashed{hash, text})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	for i := range all {
		if i >= count && all[i].hash != next {
			return page, next, nil
		}
		page, next = append(page, all[i].text), all[i].hash
	}
	return page, 0, nil
}

var seed = maphash.MakeSeed()
