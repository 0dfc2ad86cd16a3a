package usage

import (
	"context"
	"sync"
)

// MemorySketches keeps Sketches in this process, of the last hour: at most 8 MB. The zero value is ready.
type MemorySketches struct {
	mu      sync.Mutex
	minutes map[int64][]uint32
}

// AddTo implements Sketches. It forgets minutes that are more than an hour older, or newer, as after a clock that jumped.
func (m *MemorySketches) AddTo(_ context.Context, minute int64, cells, hits []uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.minutes == nil {
		m.minutes = make(map[int64][]uint32)
	}
	var unused []uint32
	for other, values := range m.minutes {
		if other <= minute-HistoryMinutes || other > minute {
			delete(m.minutes, other)
			unused = values
		}
	}
	values := m.minutes[minute]
	if values == nil {
		if values = unused; values == nil {
			values = make([]uint32, Cells)
		}
		clear(values)
		m.minutes[minute] = values
	}
	for i, cell := range cells {
		values[cell] = uint32(min(uint64(values[cell])+uint64(hits[i]), maxCell)) //nolint:gosec // not more than the maximum
	}
	return nil
}

// Read implements Sketches.
func (m *MemorySketches) Read(_ context.Context, first int64, count int, cells []uint32) ([][]uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([][]uint32, count)
	for i := range all {
		all[i] = make([]uint32, len(cells))
		values := m.minutes[first+int64(i)]
		if values == nil {
			continue
		}
		for j, cell := range cells {
			all[i][j] = values[cell]
		}
	}
	return all, nil
}
