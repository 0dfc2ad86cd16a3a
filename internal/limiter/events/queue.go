package events

import (
	"sync"
	"time"
)

// queue has the events that wait, the oldest first.
type queue struct {
	mu   sync.Mutex
	ring []*Event // made by the first event
	head int
	size int
	max  int
	wake chan struct{} // has an element if there may be an event
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// push adds an event, and returns false if the queue is full.
func (q *queue) push(e *Event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size == q.max {
		return false
	}
	if q.ring == nil {
		q.ring = make([]*Event, q.max)
	}
	q.ring[(q.head+q.size)%q.max] = e
	q.size++
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// pop removes the oldest event. It returns nil if the queue is empty.
func (q *queue) pop() *Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size == 0 {
		return nil
	}
	return q.removeHead()
}

// expire removes the events from before a time, and returns how many these are.
func (q *queue) expire(before time.Time) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; q.size > 0 && q.ring[q.head].Time.Before(before); n++ {
		q.removeHead()
	}
	return n
}

func (q *queue) removeHead() *Event {
	e := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % q.max
	q.size--
	return e
}
