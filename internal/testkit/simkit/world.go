package simkit

import (
	"container/heap"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
)

// World is a virtual time and what happens in it. Times are in microseconds.
type World struct {
	Rand  *rand.Rand
	Trace io.Writer // receives the notes of the simulation; may be nil

	now    int64
	queue  queue
	number uint64
	hash   uint64
}

// New returns a world at time 0.
func New(seed uint64) *World {
	return &World{Rand: rand.New(rand.NewPCG(seed, 0x5eed))}
}

// Now is the true time.
func (w *World) Now() int64 { return w.now }

// At runs an event at a time. An event in the past runs now.
func (w *World) At(at int64, run func()) {
	w.number++
	heap.Push(&w.queue, event{max(at, w.now), w.number, run})
}

// After runs an event after a while.
func (w *World) After(d int64, run func()) { w.At(w.now+d, run) }

// Run runs all events before a time.
func (w *World) Run(until int64) {
	for len(w.queue) > 0 && w.queue[0].at < until {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		w.hash = bits.RotateLeft64(w.hash, 5) ^ uint64(e.at)*0x9e3779b97f4a7c15 ^ e.number
		e.run()
	}
	w.now = until
}

// Note adds a line to the trace, if there is one.
func (w *World) Note(format string, args ...any) {
	if w.Trace != nil {
		_, _ = fmt.Fprintf(w.Trace, "%12.6f "+format+"\n", append([]any{float64(w.now) / 1e6}, args...)...)
	}
}

// Hash identifies the order of events until now.
func (w *World) Hash() uint64 { return w.hash }

// Between draws a number from low to high.
func (w *World) Between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + w.Rand.Int64N(high-low+1)
}

// Chance is true with a probability.
func (w *World) Chance(p float64) bool { return w.Rand.Float64() < p }

type event struct {
	at     int64
	number uint64
	run    func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].number < q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}
