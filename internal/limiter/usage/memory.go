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
	mu    sync.Mutex
	sets  map[string]map[string]int64
	texts int       // in all sets
	bytes int       // that they take
	swept time.Time // when texts that had ended were last removed
}

const (
	maxTexts   = 200_000
	maxMemory  = 64 << 20 // bytes; a text may have 4 KiB
	perText    = 100      // bytes that a text takes besides its own, about
	sweepEvery = 10 * time.Second
)

// Add implements Store. If there are too many texts, new ones are left out.
func (m *Memory) Add(_ context.Context, now time.Time, sets map[string]map[string]int64) (dropped int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sets == nil {
		m.sets = make(map[string]map[string]int64)
	}
	if now.Sub(m.swept) >= sweepEvery {
		m.sweep(now)
	}
	for name, texts := range sets {
		for text, end := range texts {
			old, known := m.sets[name][text]
			if !known {
				if m.texts >= maxTexts || m.bytes+cost(name, text) > maxMemory {
					dropped++
					continue
				}
				m.texts++
				m.bytes += cost(name, text)
			}
			if m.sets[name] == nil {
				m.sets[name] = make(map[string]int64)
			}
			m.sets[name][text] = max(old, end)
		}
	}
	return dropped, nil
}

// cost is how many bytes a text of a set takes. The name of the set counts for each of its texts.
func cost(set, text string) int { return len(set) + len(text) + perText }

func (m *Memory) sweep(now time.Time) {
	m.swept = now
	for name, texts := range m.sets {
		for text, end := range texts {
			if end < now.UnixMilli() {
				delete(texts, text)
				m.texts--
				m.bytes -= cost(name, text)
			}
		}
		if len(texts) == 0 {
			delete(m.sets, name)
		}
	}
}

// Page implements Store. Texts are in the order of their hashes, and a page ends between two of these.
func (m *Memory) Page(_ context.Context, now time.Time, set string, at uint64, count int) (page []string, next uint64, err error) {
	type hashed struct {
		hash uint64
		text string
	}
	var all []hashed
	m.mu.Lock()
	for text, end := range m.sets[set] {
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
