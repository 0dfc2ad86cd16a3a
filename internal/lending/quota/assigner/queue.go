package assigner

import (
	"container/heap"
	"time"
)

// queue orders pools by the time when they are due.
type queue struct{ pools []*pool }

// first returns when the first pool is due.
func (q *queue) first() (time.Time, bool) {
	if len(q.pools) == 0 {
		return time.Time{}, false
	}
	return q.pools[0].due, true
}

// set schedules a pool.
func (q *queue) set(p *pool, at time.Time) {
	p.due = at
	if p.position < 0 {
		heap.Push((*byTime)(q), p)
		return
	}
	heap.Fix((*byTime)(q), p.position)
}

func (q *queue) remove(p *pool) {
	if p.position >= 0 {
		heap.Remove((*byTime)(q), p.position)
	}
}

// byTime is a heap of pools.
type byTime queue

// Len implements sort.Interface.
func (q *byTime) Len() int { return len(q.pools) }

// Less implements sort.Interface.
func (q *byTime) Less(i, j int) bool { return q.pools[i].due.Before(q.pools[j].due) }

// Swap implements sort.Interface.
func (q *byTime) Swap(i, j int) {
	q.pools[i], q.pools[j] = q.pools[j], q.pools[i]
	q.pools[i].position, q.pools[j].position = i, j
}

// Push implements heap.Interface.
func (q *byTime) Push(p any) {
	q.pools = append(q.pools, p.(*pool))
	q.pools[len(q.pools)-1].position = len(q.pools) - 1
}

// Pop implements heap.Interface.
func (q *byTime) Pop() any {
	last := len(q.pools) - 1
	p := q.pools[last]
	q.pools[last] = nil
	q.pools, p.position = q.pools[:last], -1
	return p
}
