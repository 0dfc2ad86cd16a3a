package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Records keeps records in memory. Its clock cannot be set back. It implements backend.Records.
type Records struct {
	clock backend.Clock
	most  int

	mu      sync.Mutex
	records map[valueKey]value
	swept   int64 // when expired records were looked for last
}

type valueKey struct{ kind, key string }

type value struct {
	bytes   []byte
	expires int64 // 0: never
}

// NewRecords returns an empty Records that keeps at most this many records; 0: 100,000.
func NewRecords(most int) *Records {
	if most <= 0 {
		most = 100_000
	}
	return &Records{clock: backend.NewClock(), most: most, records: make(map[valueKey]value)}
}

// Clock implements backend.Records.
func (*Records) Clock([]byte) string { return "" }

// Change implements backend.Records. It is done when it returns.
func (r *Records) Change(c *backend.RecordChange) {
	r.change(c)
	c.Done()
}

func (r *Records) change(c *backend.RecordChange) {
	now := r.clock.Elapsed(time.Now())
	key := valueKey{c.Kind, string(c.Key)}
	r.mu.Lock()
	defer r.mu.Unlock()
	has, ok := r.records[key]
	if ok && has.expires > 0 && has.expires <= now {
		delete(r.records, key)
		has, ok = value{}, false
	}
	c.Err, c.At, c.Present, c.Counted = nil, now, nil, false
	c.More = backend.HeadOf(has.bytes).Count - c.Taken
	switch {
	case c.Read || !bytes.Equal(backend.StampOf(has.bytes), c.Stamp) || c.Value != nil && (c.More < 0 || c.More > c.Most):
		c.Result, c.Present, c.Counted = backend.RecordDiffers, bytes.Clone(has.bytes), !ok
	case now < c.NotBefore || now > c.NotAfter:
		c.Result = backend.RecordUntimely
	default:
		c.Result = backend.RecordWritten
		if c.Value == nil {
			return
		}
		if !ok && len(r.records) >= r.most && !r.makeRoom(now) {
			c.Err = fmt.Errorf("keep a record about a limit across regions: %w", backend.ErrFull)
			return
		}
		next := value{bytes: bytes.Clone(c.Value)}
		binary.LittleEndian.PutUint64(next.bytes[backend.StampSize:], uint64(c.More))
		if c.Lives > 0 {
			next.expires = now + c.Lives.Microseconds()
		}
		r.records[key] = next
	}
}

// Start implements backend.Records. It settles each take at once.
func (r *Records) Start(_ context.Context, _ time.Time, _ *backend.Batch, request *backend.Request, _ func(error)) (settled bool, err error) {
	now := r.clock.Elapsed(time.Now())
	for i := range request.Takes {
		r.take(now, request.Takes[i:i+1], request.Outcomes[i:i+1])
	}
	return true, nil
}

func (r *Records) take(now int64, takes []backend.Take, outcomes []backend.Outcome) {
	key := valueKey{backend.AccountKind, string(takes[0].Key)}
	r.mu.Lock()
	defer r.mu.Unlock()
	has := r.records[key]
	if has.expires > 0 && has.expires <= now {
		has = value{}
	}
	state := backend.HeadOf(has.bytes)
	backend.Settle(takes, []*backend.State{&state}, outcomes, now)
	if outcomes[0].Allowed {
		binary.LittleEndian.PutUint64(has.bytes[backend.StampSize:], uint64(state.Count))
	}
}

// sweepEvery is how often a full store looks for records that have expired: what is denied for lack of room must cost nothing.
const sweepEvery = time.Second

// makeRoom drops records that have expired. It returns false if there are none, or if it looked a moment ago.
func (r *Records) makeRoom(now int64) bool {
	if r.swept != 0 && now < r.swept+sweepEvery.Microseconds() {
		return len(r.records) < r.most
	}
	r.swept = now
	for key, has := range r.records {
		if has.expires > 0 && has.expires <= now {
			delete(r.records, key)
		}
	}
	return len(r.records) < r.most
}

// Len is how many records there are.
func (r *Records) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records)
}
