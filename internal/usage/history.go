package usage

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Sketches keeps cells that count hits, some for each minute: count-min sketches, whose layout this package knows.
type Sketches interface {
	// AddTo adds hits[i] to cells[i] of a minute, which is counted since the Unix epoch. Cells stay at their maximum. Minutes that
	// are older than an hour may be forgotten.
	AddTo(ctx context.Context, minute int64, cells, hits []uint32) error

	// Read returns the values of some cells, in their order, for each of count minutes from first.
	Read(ctx context.Context, first int64, count int, cells []uint32) ([][]uint32, error)
}

// Minute is the history of one counter in one minute.
type Minute struct {
	At               time.Time // its begin
	Allowed, Refused Hits
}

// Hits is an estimate from a sketch. It is more than what was counted if other counters use the same cells: by at most Error in 98 of
// 100 cases. It is never less, but for hits that are counted while the end of a minute is written.
type Hits struct{ Hits, Error uint32 }

// HistoryMinutes is how many minutes a history has. The last one is not over.
const HistoryMinutes = 60

// A minute has two sketches, of the hits that were allowed and of those that were refused. A sketch is rows*width cells. A counter
// has one cell in each row, and the smallest of these is its estimate. Both sketches are followed by one cell each with their sum.
const (
	rows  = 4
	width = 1 << widthBits
	Cells = 2*rows*width + 2 // how many cells a minute has

	widthBits = 12
)

// historyEvery is how often hits are written. It divides a minute.
const historyEvery = 10 * time.Second

// askedEvery is how often hits are written because somebody asks for a history, however often that is.
const askedEvery = time.Second

// untilHistory is the time until hits are written: when a minute ends, and between.
func untilHistory() time.Duration {
	now := time.Now()
	return now.Truncate(historyEvery).Add(historyEvery).Sub(now)
}

// tally has the hits that are not written yet.
type tally struct {
	cells [2 * rows * width]atomic.Uint32
	begin time.Time // guarded by history.mu
}

// history counts hits, and writes them to Sketches.
type history struct {
	sketches Sketches
	start    sync.Once
	tally    atomic.Pointer[tally] // nil: nothing was counted yet
	mu       sync.Mutex            // guards writing

	wrote   time.Time // the last attempt to write
	failed  bool      // that attempt
	dropped atomic.Int64
}

// cellsOf returns the cells of a counter for allowed hits. Those for refused hits follow at rows*width.
func cellsOf(key []byte) (at [rows]uint32) {
	hash := xxhash.Sum64(key) // the same in all processes
	for row := range at {
		at[row] = uint32(row*width) | uint32(hash>>(row*widthBits))%width //nolint:gosec // some of its bits
	}
	return at
}

// Count adds hits to the history of the counter with this key.
func (x *Index) Count(now time.Time, key []byte, hits int64, refused bool) {
	h := &x.history
	t := h.tally.Load()
	if t == nil {
		h.start.Do(func() { h.tally.Store(&tally{begin: now}) })
		t = h.tally.Load()
	}
	base := uint32(0)
	if refused {
		base = rows * width
	}
	for _, cell := range cellsOf(key) {
		add(&t.cells[base+cell], hits)
	}
}

func add(cell *atomic.Uint32, hits int64) {
	for {
		before := cell.Load()
		after := uint32(min(int64(before)+hits, maxCell)) //nolint:gosec // not more than the maximum
		if cell.CompareAndSwap(before, after) {
			return
		}
	}
}

const maxCell = 1<<32 - 1

// FlushHistory writes the hits that were counted since the last call. They count for the minute in the middle of this time, so a
// call that is a moment early or late does not matter.
func (x *Index) FlushHistory(ctx context.Context, now time.Time) { x.flushHistory(ctx, now, 0) }

// flushHistory does nothing if hits were written less than rest ago.
func (x *Index) flushHistory(ctx context.Context, now time.Time, rest time.Duration) {
	h := &x.history
	h.mu.Lock()
	defer h.mu.Unlock()
	if rest > 0 && now.Sub(h.wrote) < rest {
		return
	}
	t := h.tally.Load()
	if t == nil {
		return
	}
	minute := minuteOf(t.begin.Add(now.Sub(t.begin) / 2))
	t.begin = now
	cells, hits := []uint32{sumCell, sumCell + 1}, []uint32{0, 0} // the last cells first: a store may reserve memory up to them
	total := int64(0)
	for sketch := range uint32(2) {
		sum := int64(0)
		for i := sketch * rows * width; i < (sketch+1)*rows*width; i++ {
			if t.cells[i].Load() == 0 {
				continue
			}
			n := t.cells[i].Swap(0)
			cells, hits = append(cells, i), append(hits, n)
			if i < sketch*rows*width+width {
				sum += int64(n)
			}
		}
		hits[sketch] = uint32(min(sum, maxCell)) //nolint:gosec // not more than the maximum
		total += sum
	}
	if len(cells) == 2 {
		return
	}
	h.wrote = now
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	err := h.sketches.AddTo(ctx, minute, cells, hits)
	if err != nil {
		h.dropped.Add(total)
		if !h.failed {
			x.opts.Logger.Warn("hits are not written to the history of counters", "error", err)
		}
	}
	h.failed = err != nil
}

const sumCell = 2 * rows * width // of the allowed hits; the other sum follows

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// History returns the last hour of counters, by their keys: the oldest minute first. What other processes counted may be missing for
// as long as they wait before they write.
func (x *Index) History(ctx context.Context, now time.Time, keys [][]byte) ([][]Minute, error) {
	x.flushHistory(ctx, now, askedEvery)
	cells := []uint32{sumCell, sumCell + 1}
	for _, key := range keys {
		at := cellsOf(key)
		cells = append(cells, at[:]...)
		for _, cell := range at {
			cells = append(cells, rows*width+cell)
		}
	}
	first := minuteOf(now) - HistoryMinutes + 1
	read, err := x.history.sketches.Read(ctx, first, HistoryMinutes, cells)
	if err != nil {
		return nil, err
	}
	all := make([][]Minute, len(keys))
	for i := range all {
		for j, values := range read {
			of := values[2+2*rows*i:]
			all[i] = append(all[i], Minute{
				At:      time.Unix((first+int64(j))*60, 0),
				Allowed: estimate(of[:rows], values[0]),
				Refused: estimate(of[rows:2*rows], values[1]),
			})
		}
	}
	return all, nil
}

// estimate returns the smallest cell of a counter, and by how much it may be too large if sum was counted in the whole sketch: e/width of
// it, except with a probability of 1/e for each row.
func estimate(cells []uint32, sum uint32) Hits {
	return Hits{Hits: slices.Min(cells), Error: uint32(math.E / width * float64(sum))}
}
