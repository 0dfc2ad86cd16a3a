package regions

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
)

const (
	tick       = time.Second // how often the clock and the generation are read, and the role is renewed
	consenting = 5           // ticks between two rounds of questions for consent
	mostNames  = 256         // regions of a list
)

// Run does what must be done every second, until ctx ends: it reads the clock, renews the role of this region as a home, and asks for what the
// accounts need or return. Then it waits for the calls that are on their way.
func (s *Store) Run(ctx context.Context) error {
	defer s.end()
	t := time.NewTicker(tick)
	defer t.Stop()
	for n := 0; ; n++ {
		s.tick(ctx, n)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
				waiting = false
			case <-s.kick:
				s.raise(ctx)
			}
		}
	}
}

func (s *Store) tick(ctx context.Context, n int) {
	if err := s.readGeneration(ctx, false); err != nil {
		s.counts.clockErrors.Add(1)
		return
	}
	s.keepRules(ctx, n%consenting == 0)
	if asked, ok := s.renew(ctx); ok && n%consenting == 0 {
		s.askConsent(asked)
	}
	probed := make(map[*asker]bool) // homes: one account of each asks, and the others learn whether its rules have changed
	for _, a := range s.accounts.all() {
		if at, knows, ready := s.clocks.reading(s.opts.Records.Clock(a.key)); knows && ready && a.tend(at, !probed[a.home]) {
			probed[a.home] = true
		}
	}
	for _, p := range s.parts.all() {
		if at, knows, ready := s.clocks.reading(s.opts.Records.Clock(p.key)); knows && ready {
			p.tend(at)
		}
	}
}

// raise raises the generation after the clock of the Redis was set back, unless another replica has.
func (s *Store) raise(ctx context.Context) {
	if _, ready := s.clocks.known(); ready {
		return // the tick that noticed it has done so
	}
	if err := s.readGeneration(ctx, true); err != nil {
		s.counts.clockErrors.Add(1)
	}
}

// mistrust makes takes wait until the generation was read again: a record knows a higher one.
func (c *clocks) mistrust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset()
}

// readGeneration reads how often the clock was set back. A Redis that was flushed learns it from its replicas.
func (s *Store) readGeneration(ctx context.Context, raise bool) error {
	w := s.waitOf(ctx)
	defer w.end()
	mine, _ := s.clocks.known()
	key := []byte(s.opts.Prefix + ownKey)
	c := backend.RecordChange{Key: key, Kind: "generation", Read: true}
	for {
		name := s.opts.Records.Clock(key)
		at, _, _ := s.clocks.reading(name)
		done := make(chan struct{})
		change := c
		change.Done = func() { close(done) }
		s.opts.Records.Change(&change)
		if err := w.until(done, nil); err != nil {
			return fmt.Errorf("read the generation of the clock: %w", err)
		}
		if change.Err != nil {
			return change.Err
		}
		if !s.clocks.saw(name, state{at.Least, at.Generation}, change.At) {
			raise = true
		}
		if !c.Read && change.Result == backend.RecordWritten {
			_, n := numbered(c.Value)
			s.learn(n)
			if raise {
				s.opts.Logger.Warn("the clock of Redis was set back: this region gives up the permits that it holds of limits across regions", "generation", n)
			}
			return nil
		}
		has, kept := numbered(change.Present)
		want := max(kept, mine)
		if raise && kept <= mine {
			want = mine + 1
		}
		if has && want == kept || !has && want == 0 {
			s.learn(want)
			return nil
		}
		value := appendHead(nil)
		c = backend.RecordChange{
			Key: key, Kind: "generation", Stamp: backend.StampOf(change.Present), NotAfter: math.MaxInt64,
			Value: binary.AppendUvarint(value, want),
		}
	}
}

// learn takes in the generation.
func (s *Store) learn(generation uint64) {
	if s.clocks.read(generation) {
		s.duty.Store(nil)
	}
}

// numbered reads a generation. What is none counts as 0.
func numbered(value []byte) (has bool, n uint64) {
	if len(value) <= backend.RecordHead {
		return len(value) > 0, 0
	}
	n, size := binary.Uvarint(value[backend.RecordHead:])
	if size <= 0 || n > math.MaxUint32 {
		return true, 0
	}
	return true, n
}

// renew renews this region's role as a home. It returns the time from which consents count.
func (s *Store) renew(ctx context.Context) (from int64, consents bool) {
	w := s.waitOf(ctx)
	defer w.end()
	var duty region.Duty // the step may still write to these if it is late
	var known uint64
	var asked int64
	var ok bool
	err := do(w, s.role, &step[region.Role]{fresh: true, run: func(v *region.Role, at region.Reading) int64 {
		duty, asked, ok, known = region.Duty{}, at.Now, false, v.Known
		if ok = v.Begin(at, &s.epoch); ok {
			duty = v.Duty(at, &s.epoch)
		}
		return never
	}})
	if err != nil {
		return 0, false // the duty that is known ends on its own
	}
	s.duty.Store(&duty)
	s.known.Store(known)
	return asked, ok
}

// askConsent asks the other regions whether they consent to this home.
func (s *Store) askConsent(asked int64) {
	for name, p := range s.peers {
		if !p.asking.CompareAndSwap(false, true) {
			continue // the last question is still on its way
		}
		if !s.begin() {
			return
		}
		go func() {
			defer s.sending.Done()
			defer p.asking.Store(false)
			ctx, cancel := context.WithTimeout(s.stopping, 2*callTimeout)
			defer cancel()
			sent := time.Now()
			yes, err := s.opts.Peers.Consent(ctx, name, &s.epoch)
			p.consented(yes, time.Since(sent), err)
			if !yes || err != nil {
				return
			}
			w := s.waitOf(ctx)
			defer w.end()
			_ = do(w, s.role, &step[region.Role]{fresh: true, run: func(v *region.Role, at region.Reading) int64 {
				v.Consented(at, &s.epoch, name, asked)
				return never
			}}) // a consent that is lost is asked for again
		}()
	}
}

// farthest is how much higher the epoch of another region may be. A region remembers the highest one forever, and is no home with a lower
// one: without a bound, one call with a stolen certificate could leave no number above it. Epochs may be dates, or seconds since 1970.
const farthest = 1 << 40

// Consent answers whether this region consents to a home. from is the region that asks, as its certificate says.
func (s *Store) Consent(ctx context.Context, from string, e *region.Epoch) (bool, error) {
	if from != e.Home || len(e.Regions) > mostNames {
		return false, fmt.Errorf("the region %q asks for consent to the home %q", from, e.Home)
	}
	if e.Number > s.opts.Epoch+farthest {
		return false, fmt.Errorf("region %s has epoch %d, and this region %d: an epoch that is more than %d higher is rejected, because this region could never have a later one", from, e.Number, s.opts.Epoch, uint64(farthest))
	}
	if p := s.peers[from]; p != nil {
		p.asks(e.Number)
	}
	w := s.waitOf(ctx)
	defer w.end()
	yes := false
	err := do(w, s.role, &step[region.Role]{fresh: true, run: func(v *region.Role, _ region.Reading) int64 {
		yes = v.Consent(e.Number)
		return never
	}})
	return err == nil && yes, err // with an error, the step may still be running
}

// peer is what this replica knows about another region.
type peer struct {
	mu        sync.Mutex
	lastHeard time.Time // an answer to a question of this replica
	lastAsked time.Time // a question of that region
	lastYes   time.Time // it consented to this home
	epoch     uint64    // of its last question
	err       error     // of the last call
	rtt       time.Duration
	refusal   PeerRefusal

	asking atomic.Bool // for consent
}
