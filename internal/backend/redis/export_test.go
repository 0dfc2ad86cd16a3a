package redis

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Command returns the command that Take would send, for benchmarks that put many into one pipeline. It loads the script
// into the server.
func (s *Store) Command(ctx context.Context, now time.Time, r *backend.Request) ([]any, error) {
	c := new(scriptCall)
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	if err := c.pack(terms{now: now.UnixMicro(), redisClock: true, small: s.small, lyft: s.opts.LyftKeys}, r); err != nil {
		return nil, err
	}
	if !loaded[c.script.Hash] {
		if err := s.opts.Client.ScriptLoad(ctx, c.script.Text).Err(); err != nil {
			return nil, err
		}
		loaded[c.script.Hash] = true
	}
	return c.command(ctx, "evalsha", c.script.Hash).Args(), nil
}

var loaded = map[string]bool{}

// SlotOf returns the slot of a key.
func SlotOf(key string) uint16 { return slotOf([]byte(key)) }

// TakeAll settles requests in one call, as a flush does.
func (s *Store) TakeAll(ctx context.Context, now time.Time, requests ...*backend.Request) error {
	c := scriptCalls.Get().(*scriptCall)
	defer c.release()
	return s.take(ctx, now.UnixMicro(), c, requests...)
}

// Waiting returns how many requests wait for a flush, including those whose callers have left.
func (s *Store) Waiting() int {
	q := s.queues.common
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.state.waiting)
}

// ReservationKeys returns the keys of the reservations of a counter.
func ReservationKeys(key string) []string {
	var keys []string
	for _, kind := range []string{reservationsKey, byIDKey, endsKey} {
		keys = append(keys, string(appendRecordKey(nil, []byte(key), kind)))
	}
	return keys
}

// PenaltyKey returns the key of the penalty of a counter.
func PenaltyKey(key string, shadow bool) string {
	return string(appendPenaltyKey(nil, descriptor.AppendPenaltyKey(nil, []byte(key), shadow)))
}

// SetFewReservations sets from how many reservations on a list is large.
func (s *Store) SetFewReservations(n int) { s.small = n }

// TakeHere settles a request in the calling goroutine, or returns false.
func (s *Store) TakeHere(ctx context.Context, now time.Time, r *backend.Request) (bool, error) {
	return s.queues.common.settleHere(ctx, now.UnixMicro(), r)
}

// Working reports whether workers have been started: a request has entered the queue.
func (s *Store) Working() bool {
	q := s.queues.common
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running > 0
}

// Commands returns the command for a request as a lane sends it, and as the client does.
func Commands(ctx context.Context, routed bool, r *backend.Request) (lane string, client []any, err error) {
	c := new(scriptCall)
	if err := c.pack(terms{now: 1, redisClock: true, small: fewReservations, routed: routed}, r); err != nil {
		return "", nil, err
	}
	lane = string(c.wire())
	return lane, c.command(ctx, "evalsha", c.script.Hash).Args(), nil
}
