package regions

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// kept is a value of package region.
type kept[T any] interface {
	*T
	AppendRecord(b []byte) []byte
	ReadRecord(b []byte) error
}

// record is one record of the region's Redis, as this replica knows it. Steps that are begun while a change is on its way are gathered, and
// the next change carries all of them out. So a hot record costs one trip for each batch, and only replicas contend with each
// other.
//
// A batch is computed on the value that was seen last, at a time that the Redis' clock is known to have reached: clocks.reading. The
// script writes the result only if the record is still that one, and if the time is at most slack later, and before the end of any grant or
// window that a step has used. Otherwise the batch is computed again, on what is there now. The script rejects the
// write of a replica that was paused in between, because time has passed.
type record[T any, P kept[T]] struct {
	of   *Store
	key  []byte
	kind string

	// taken is called before the steps of a batch run on a value: it takes in what was taken from the record without a step, and returns that.
	// bound returns how much more may have been taken when the value is written, and before which time it must be written. shows is called
	// when a value was written or read, with what has been taken since, and the time. nil: there are only steps.
	taken func(v *T, at region.Reading) int64
	bound func(v *T, now int64) (most, until int64)
	shows func(v *T, stamp, taken, now int64)

	// each is called after the steps of a batch have run on a value. What it returns is called when the value was written.
	each func(v *T, at region.Reading) (written func())
	// lives is how long a value is kept; nil: forever.
	lives func(v *T, now int64) time.Duration

	touched atomic.Int64 // when a step was begun last, by clocks.elapsed

	mu     sync.Mutex
	queued []*step[T]
	busy   bool // a batch is on its way: its goroutine owns the fields below

	running []*step[T]
	tries   int
	late    int    // of them, those that came too late
	value   []byte // with its stamp; empty: there is none
	counted bool   // there is no record, and the counter itself may exist
	known   bool   // value was seen, and may be the present one
	read    *T     // what value says; nil: it was not read since it changed
	changed *T     // what the change on its way says
	next    []byte // what the change writes
	was     []byte // what it would write if the steps changed nothing
	written func() // of each
	clock   string
	sent    state
	change  backend.RecordChange
	phase   atomic.Int32
}

// step is what is done to a record. It may run several times, on a value that differs each time.
type step[T any] struct {
	// run changes the value. It returns before which time that must be written.
	run  func(v *T, at region.Reading) (until int64)
	done func(error) // called once, and must not take long

	// fresh: the time of the computation must not be earlier than when the step was begun.
	fresh bool
	ready bool        // a trip has begun since, so it is not
	look  bool        // it changes nothing: it is done when the value was read
	gone  atomic.Bool // its caller has stopped waiting: it need not run
}

const (
	// slack is how much later than the time of a computation its result may be written. It is long enough for a trip, and for a
	// replica that waits for a CPU.
	slack = 50_000

	// mostLate: if trips take longer than slack, each next try may be twice as late, so often. What must not be late says so itself: until.
	mostLate = 5

	never = math.MaxInt64

	// mostTries is how often a batch is computed again before its steps fail. Each try but the first means that another replica has
	// changed the record, or that time has passed.
	mostTries = 200
)

// add begins a step.
func (r *record[T, P]) add(s *step[T]) {
	r.touched.Store(r.of.clocks.elapsed())
	r.mu.Lock()
	r.queued = append(r.queued, s)
	busy := r.busy
	r.busy = true
	r.mu.Unlock()
	if !busy {
		r.run()
	}
}

// idle reports whether nothing is on its way.
func (r *record[T, P]) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.busy
}

// run sends batches until nothing is left to do, or until an answer will come later.
func (r *record[T, P]) run() {
	for r.prepare() {
		r.phase.Store(0)
		r.of.opts.Records.Change(&r.change)
		if r.phase.Swap(2) != 1 {
			return // the answer continues
		}
		r.settle()
	}
}

// answered is called when a change has its answer.
func (r *record[T, P]) answered() {
	if r.phase.Swap(1) == 2 {
		r.settle()
		r.run()
	}
}

// prepare computes the next change. It returns false if there is none.
func (r *record[T, P]) prepare() bool {
	for {
		r.mu.Lock()
		r.running = append(r.running, r.queued...)
		clear(r.queued)
		r.queued = r.queued[:0]
		r.running = slices.DeleteFunc(r.running, func(s *step[T]) bool { return s.gone.Load() })
		if len(r.running) == 0 {
			r.busy = false
			r.mu.Unlock()
			return false
		}
		r.mu.Unlock()
		r.clock = r.of.opts.Records.Clock(r.key)
		at, knows, ready := r.of.clocks.reading(r.clock)
		if !ready {
			r.finish(errClock)
			continue
		}
		if r.tries++; r.tries > mostTries {
			r.finish(fmt.Errorf("%w: other replicas changed a record %d times", backend.ErrUnavailable, mostTries))
			continue
		}
		r.sent = state{at.Least, at.Generation}
		r.change = backend.RecordChange{Key: r.key, Kind: r.kind, Done: r.answered}
		if !knows || !r.known || slices.ContainsFunc(r.running, func(s *step[T]) bool { return s.fresh && !s.ready }) {
			r.change.Read = true
			return true
		}
		if p, ok := errors.AsType[*async.PanicError](r.compute(at)); ok {
			r.of.opts.Logger.Error("panic while computing a record of a limit across regions", "kind", r.kind, "panic", p.Value, "stack", string(p.Stack))
			r.known, r.read = false, nil
			r.finish(p)
			continue
		}
		return true
	}
}

// compute runs the batch on the value that was seen last. It returns a panic of a step as an error: then the batch fails, and the next one
// reads the record again.
func (r *record[T, P]) compute(at region.Reading) (err error) {
	defer async.Recover(&err)
	v := r.read
	if v == nil {
		v = r.decode()
	}
	r.read, r.changed = nil, v             // if it is not written, it is computed again, from value
	taken := backend.HeadOf(r.value).Count // 0, or a foreign number
	if r.taken != nil {
		taken = r.taken(v, at)
	}
	r.was = P(v).AppendRecord(r.was[:0])
	until := int64(never)
	for _, s := range r.running {
		until = min(until, s.run(v, at))
	}
	r.written = nil
	if r.each != nil {
		r.written = r.each(v, at)
	}
	c := &r.change
	c.Taken = taken
	if r.bound != nil {
		var before int64
		c.Most, before = r.bound(v, at.Now)
		until = min(until, before)
	}
	c.Stamp, c.NotBefore, c.NotAfter = backend.StampOf(r.value), at.Now, min(at.Now+slack<<min(r.late, mostLate), until-1)
	if r.lives != nil {
		c.Lives = r.lives(v, at.Now)
	}
	r.next = P(v).AppendRecord(appendHead(r.next[:0]))
	switch {
	case !bytes.Equal(r.next[backend.RecordHead:], r.was):
		c.Value = r.next
	case taken > 0:
		r.changed = nil // it accounts for what the record still counts
	}
	return nil
}

// appendHead begins a record with a new stamp.
func appendHead(b []byte) []byte { return backend.AppendHead(b, int64(rand.Uint64()>>11|1)) }

// decode returns the value that was seen last. One that cannot be read counts as lost.
func (r *record[T, P]) decode() *T {
	v := new(T)
	if len(r.value) > backend.RecordHead && P(v).ReadRecord(r.value[backend.RecordHead:]) != nil {
		r.of.counts.unreadable.Add(1)
		v = new(T)
	}
	return v
}

// settle takes in the answer to a change.
func (r *record[T, P]) settle() {
	c := &r.change
	if c.Err != nil {
		r.known = false
		r.finish(c.Err)
		return
	}
	if !r.of.clocks.saw(r.clock, r.sent, c.At) {
		r.known = false
		r.finish(errClock)
		return
	}
	for _, s := range r.running {
		s.ready = true
	}
	switch c.Result {
	case backend.RecordUntimely: // the value is as it was
		r.late++
	case backend.RecordDiffers:
		r.value, r.counted, r.known, r.read = append(r.value[:0], c.Present...), c.Counted, true, nil
		r.notice(backend.HeadOf(r.value).Count)
		r.finishLooks()
	case backend.RecordWritten:
		taken := c.More
		if c.Value != nil {
			r.value, r.next = r.next, r.value
		} else {
			taken += c.Taken
		}
		r.read = r.changed
		r.notice(taken)
		if r.written != nil {
			r.written()
		}
		r.finish(nil)
	}
}

// notice tells what is there now.
func (r *record[T, P]) notice(taken int64) {
	if r.shows == nil {
		return
	}
	if r.read == nil {
		r.read = r.decode()
	}
	r.shows(r.read, backend.HeadOf(r.value).Start, taken, r.change.At)
}

// finishLooks ends a batch of steps that only look.
func (r *record[T, P]) finishLooks() {
	if !slices.ContainsFunc(r.running, func(s *step[T]) bool { return !s.look }) {
		r.finish(nil)
	}
}

// finish ends the batch.
func (r *record[T, P]) finish(err error) {
	r.tries, r.late, r.written = 0, 0, nil
	for _, s := range r.running {
		s.done(err)
	}
	clear(r.running)
	r.running = r.running[:0]
}

// cache has the records that this replica has used lately. It is bounded: what is not in it costs another trip.
type cache[R interface {
	idle() bool
	used() int64
}] struct {
	most int

	mu      sync.RWMutex
	records map[string]R
}

func newCache[R interface {
	idle() bool
	used() int64
}](most int) *cache[R] {
	return &cache[R]{most: most, records: make(map[string]R)}
}

func (r *record[T, P]) used() int64 { return r.touched.Load() }

// of returns a record, and makes it if there is none.
func (c *cache[R]) of(key []byte, create func() R) R {
	c.mu.RLock()
	r, ok := c.records[string(key)]
	c.mu.RUnlock()
	if ok {
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok = c.records[string(key)]; ok {
		return r
	}
	if len(c.records) >= c.most {
		c.evict()
	}
	r = create()
	c.records[string(key)] = r
	return r
}

// evict drops the one of some records that was not used for longest. A record that is dropped while a step is added to it still works: two
// of one key are like two replicas.
func (c *cache[R]) evict() {
	const looked = 16
	n, oldest, since := 0, "", int64(never)
	for key, r := range c.records {
		if n++; n > looked {
			break
		}
		if at := r.used(); at < since && r.idle() {
			oldest, since = key, at
		}
	}
	delete(c.records, oldest)
}

// all returns the records.
func (c *cache[R]) all() []R {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make([]R, 0, len(c.records))
	for _, r := range c.records {
		all = append(all, r)
	}
	return all
}
