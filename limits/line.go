package limits

import (
	"container/list"
	"context"
	"encoding/binary"
	"reflect"
	"sync"
	"time"
)

// fresh is the time for which a goroutine that joins a line trusts the last answer. A refund, a reset or a change of
// rules may have made room since.
const fresh = time.Second

// lines holds a line for each limit that a goroutine waits for now.
var lines = queue{byID: make(map[identity]*line)}

// queue holds the lines of callers, by identity. A caller is a goroutine in Wait or Acquire.
type queue struct {
	mu   sync.Mutex
	byID map[identity]*line
}

// identity identifies a line: the decider that its callers ask, and the domain and descriptors that they ask for.
type identity struct {
	asked   any // a Decider or Reserver
	entries string
}

// line holds the callers that wait for the same limit, in the order in which they came. Only the first one asks the
// decider. The fields are guarded by queue.mu.
type line struct {
	callers list.List // turns (*turn), the first caller in front
	room    time.Time // time when there will be room, according to the last answer
	at      time.Time // time of the last answer
}

// turn is a place in a line.
type turn struct {
	id    identity
	line  *line
	place *list.Element // nil once the caller has left the line
	first chan struct{} // closed when the turn is the first of its line
	// wakes the first caller, to ask again: a place was given back, or a caller joined who cannot trust the last answer
	wake chan struct{}
}

// join adds a caller to the end of its line.
func (q *queue) join(d any, r *Request) *turn {
	t := &turn{first: make(chan struct{}), wake: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	// two deciders that are not comparable cannot share a line
	if reflect.ValueOf(d).Comparable() {
		t.id = identity{d, r.identity()}
		t.line = q.byID[t.id]
	}
	if t.line == nil {
		t.line = new(line)
	}
	if t.id.asked != nil {
		q.byID[t.id] = t.line
	}
	t.place = t.line.callers.PushBack(t)
	if front := t.line.callers.Front(); front == t.place {
		close(t.first)
	} else if time.Since(t.line.at) > fresh {
		front.Value.(*turn).awake()
	}
	return t
}

// awake makes the caller ask again.
func (t *turn) awake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// released wakes the first caller of a line: a place has been given back.
func (q *queue) released(id identity) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.byID[id]; l != nil {
		if front := l.callers.Front(); front != nil {
			front.Value.(*turn).awake()
		}
	}
}

// identity returns a text that is the same for requests with the same domain and entries.
func (r *Request) identity() string {
	if r == nil {
		return "" // the decider will report that it is invalid
	}
	text := func(to []byte, s string) []byte { return append(binary.AppendUvarint(to, uint64(len(s))), s...) }
	all := text(nil, r.Domain)
	for i := range r.Descriptors {
		all = binary.AppendUvarint(all, uint64(len(r.Descriptors[i].Entries)))
		for _, e := range r.Descriptors[i].Entries {
			all = text(text(all, e.Key), e.Value)
		}
	}
	return string(all)
}

// leave removes the caller from its line, so that the next one may ask.
func (t *turn) leave() {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	if t.place == nil {
		return
	}
	l := t.line
	l.callers.Remove(t.place)
	t.place = nil
	if front := l.callers.Front(); front != nil {
		next := front.Value.(*turn)
		select {
		case <-next.first: // next is the first already: t has left from behind it
		default:
			close(next.first)
		}
		return
	}
	if known := time.Until(l.room); known > 0 && known <= fresh && lines.byID[t.id] == l {
		time.AfterFunc(known, func() { lines.forget(t.id, l) }) // callers that join until then need not ask
		return
	}
	lines.remove(t.id, l)
}

// forget removes a line that nobody has joined since, unless there is a newer answer, which has a later timer.
func (q *queue) forget(id identity, l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.callers.Len() == 0 && time.Until(l.room) <= 0 {
		q.remove(id, l)
	}
}

func (q *queue) remove(id identity, l *line) {
	if q.byID[id] == l {
		delete(q.byID, id)
	}
}

// await waits until the caller is the first of its line.
func (t *turn) await(ctx context.Context) error {
	select {
	case <-t.first:
		return nil
	default:
	}
	if deadline, ok := ctx.Deadline(); ok && t.trusts() && deadline.Before(t.room()) {
		return tooLong(time.Until(t.room()))
	}
	select {
	case <-t.first:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// trusts reports whether the last answer is fresh.
func (t *turn) trusts() bool {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	return time.Since(t.line.at) <= fresh
}

// room returns when there will be room, according to the last answer.
func (t *turn) room() time.Time {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	return t.line.room
}

// asked records the answer to the first caller of the line: the time until there is room.
func (t *turn) asked(wait time.Duration) {
	lines.mu.Lock()
	defer lines.mu.Unlock()
	t.line.at = time.Now()
	t.line.room = t.line.at.Add(wait)
}

// pause waits until there is room, or somebody wakes the caller.
func (t *turn) pause(ctx context.Context) error { return sleep(ctx, time.Until(t.room()), t.wake) }
