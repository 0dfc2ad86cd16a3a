package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Store.
type Options struct {
	Store   backend.Store   // counts what does not concern regions; required
	Records backend.Records // of this region; required
	Peers   Peers           // required if there are other regions

	Region  string   // this one; required
	Regions []string // all of them, this one included, in any order; required
	Epoch   uint64   // number of that list: at least 1, and larger for each later list

	// Before is the list of the epoch before if this region has become the home of counters with this epoch. Stopped: the operator
	// answers for it that the old home has stopped.
	Before  []string
	Stopped bool

	Prefix     string        // of the keys of records that belong to no counter
	Timeout    time.Duration // of takes whose callers have no deadline; default 1 s
	MaxRecords int           // records that this replica remembers, of each kind; default 20,000

	Metrics metric.Registry // nil: no metrics
	Logger  *slog.Logger    // default slog.Default()
}

// Resolver finds the limit of a question in the rules of this region: package limiter does.
type Resolver interface {
	// Resolve returns the counter of one limit of a descriptor, with the numbers that hold for its caller. tag is the limit's. It returns
	// false if no rule matches, or if the rule has no such limit.
	Resolve(now time.Time, domain string, entries []descriptor.Entry, tag string) (backend.Counter, bool)

	// Rules returns a number that stands for all that Resolve depends on, the same in all replicas with the same rules and overrides. 0: there
	// is none, and Resolve may return other numbers at any time.
	Rules(now time.Time) uint64
}

// Store counts limits with Regions at their homes, lowers those of tallies, and passes all other takes on.
type Store struct {
	opts   Options
	clocks *clocks
	counts counts

	accounts *cache[*account]
	homes    *cache[*home]
	parts    *cache[*part]
	homesOf  homesOf
	tallies  *cache[*tally]
	unseen   unseen
	others   []string // the other regions, in order
	role     *record[region.Role, *region.Role]
	duty     atomic.Pointer[region.Duty] // nil: none yet
	known    atomic.Uint64               // the latest epoch that the region has heard of
	epoch    region.Epoch                // of this region as a home
	askers   map[string]*asker           // by home
	peers    map[string]*peer            // what is known about the other regions

	resolver atomic.Pointer[Resolver]
	kick     chan struct{} // a clock was set back: raise the generation
	closing  sync.RWMutex
	stop     context.CancelFunc
	stopping context.Context //nolint:containedctx // of what the store sends on its own
	sending  sync.WaitGroup
}

// mostRegions is how many regions there may be: the region port accepts no longer list.
const mostRegions = 64

// errClock is the error of takes while the clock of the Redis is not known.
var errClock = fmt.Errorf("%w: the clock of Redis was not read yet, or was set back", backend.ErrUnavailable)

// New returns a store. Takes under limits with Regions have no answer before Run has read the clock of the Redis.
func New(opts Options) (*Store, error) {
	switch {
	case !slices.Contains(opts.Regions, opts.Region):
		return nil, fmt.Errorf("the region %q is not one of %s", opts.Region, strings.Join(opts.Regions, ", "))
	case len(opts.Regions) > mostRegions:
		return nil, fmt.Errorf("%d regions: at most %d", len(opts.Regions), mostRegions)
	case opts.Epoch == 0:
		return nil, errors.New("the epoch of the list of regions must be at least 1")
	}
	if opts.Timeout <= 0 {
		opts.Timeout = time.Second
	}
	if opts.MaxRecords <= 0 {
		opts.MaxRecords = 20_000
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Store{
		opts: opts, kick: make(chan struct{}, 1),
		accounts: newCache[*account](opts.MaxRecords), homes: newCache[*home](opts.MaxRecords), parts: newCache[*part](opts.MaxRecords),
		tallies: newCache[*tally](opts.MaxRecords), others: othersOf(opts.Regions, opts.Region),
		epoch:  region.Epoch{Number: opts.Epoch, Home: opts.Region, Regions: opts.Regions, Before: opts.Before, Stopped: opts.Stopped},
		askers: make(map[string]*asker), peers: make(map[string]*peer),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.clocks = newClocks(func() {
		s.duty.Store(nil)
		select {
		case s.kick <- struct{}{}:
		default:
		}
	})
	s.role = &record[region.Role, *region.Role]{of: s, key: []byte(opts.Prefix + ownKey), kind: "role"}
	s.homesOf.record = record[region.Homes, *region.Homes]{of: s, key: []byte(opts.Prefix + ownKey), kind: "homes"}
	s.homesOf.known.Store(&map[uint64]string{})
	for _, name := range slices.Concat(opts.Regions, opts.Before) {
		if name != opts.Region && s.peers[name] == nil {
			s.peers[name] = &peer{}
			s.askers[name] = newAsker(s, name)
		}
	}
	metric.Register(opts.Metrics, s.families()...)
	return s, nil
}

// ownKey is the key, after the prefix of all keys, of the records that belong to no counter. No counter has it: ours contain a |.
const ownKey = "{regions}"

// SetResolver sets how questions of other regions find their limits. Until then they are not answered.
func (s *Store) SetResolver(r Resolver) { s.resolver.Store(&r) }

// concerns reports whether one region counts a limit for all.
func concerns(l *descriptor.Limit) bool { return l.Regions != nil && l.Regions.HasHome() }

// Start implements backend.Store. A request with a limit across regions gets a goroutine, unless its only take can be taken from what an
// account offers.
func (s *Store) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (settled bool, err error) {
	if len(r.Takes) == 1 && r.Takes[0].Limit.Regions != nil {
		if begun, settled, err := s.start(ctx, now, b, r, done); begun {
			return settled, err
		}
	}
	tallied := false
	for i := range r.Takes {
		switch l := r.Takes[i].Limit; {
		case l.Regions == nil:
		case concerns(l):
			async.Go(func() error { return s.take(ctx, now, r) }, done)
			return false, nil
		default:
			tallied = true
		}
	}
	if tallied {
		return s.startTallied(ctx, now, b, r, done)
	}
	return s.opts.Store.Start(ctx, now, b, r, done)
}

// take settles a request, and waits. Takes of several counters are settled like those of several Redis servers: backend.Split.
func (s *Store) take(ctx context.Context, now time.Time, r *backend.Request) error {
	if len(r.Takes) == 1 && concerns(r.Takes[0].Limit) {
		w := s.waitAlone(ctx)
		defer w.end()
		return s.takeHere(w, now, r)
	}
	w := s.waitOf(ctx)
	defer w.end()
	return backend.Split(ctx, r, place, func(ctx context.Context, at string, part *backend.Request) error {
		if at == "" {
			wait := async.NewWaiter()
			settled, err := s.startTallied(ctx, now, nil, part, wait.Done)
			return wait.Wait(settled, err)
		}
		return s.takeHere(w, now, part)
	}, nil) // the denial cache is behind this store, and sees what is given back
}

// place is where a take is counted: "" for the store behind this one.
func place(t *backend.Take) string {
	if !concerns(t.Limit) {
		return ""
	}
	return string(t.Key)
}

// takeHere settles takes of one counter, one after the other.
func (s *Store) takeHere(w *wait, now time.Time, r *backend.Request) error {
	var errs []error
	for i := range r.Takes {
		t, o := &r.Takes[i], &r.Outcomes[i]
		*o = backend.Outcome{}
		if err := s.takeOne(w, now, t, o); err != nil {
			*o = backend.Outcome{Failed: true}
			errs = append(errs, err)
		}
	}
	if r.Together && len(r.Takes) > 1 && backend.Refused(r.Takes, r.Outcomes) {
		for i := range r.Takes {
			if t := r.Takes[i]; r.Outcomes[i].Allowed && t.Hits > 0 {
				t.Hits = -t.Hits
				_ = s.takeOne(w, now, &t, &backend.Outcome{}) // what is not given back counts as used
			}
		}
	}
	return errors.Join(errs...)
}

// errOrigin is the error of takes without Origin under a limit that another region counts.
var errOrigin = fmt.Errorf("%w: another region cannot find a limit without the descriptor", backend.ErrUnavailable)

// errKind is the error of takes that cannot be counted across regions. Rules that need them are rejected.
var errKind = fmt.Errorf("%w: reservations and penalties are not counted across regions", backend.ErrUnavailable)

func (s *Store) takeOne(w *wait, now time.Time, t *backend.Take, o *backend.Outcome) error {
	if t.Reservation != nil || t.Guards {
		return errKind
	}
	home, err := s.homeOf(w, t.Key, t.Limit)
	switch {
	case err != nil:
		return err
	case home == s.opts.Region && divided(t.Limit):
		return s.takePart(w, home, t, o)
	case home == s.opts.Region:
		return s.takeAtHome(w, now, t, o)
	case s.askers[home] == nil:
		return s.errHome(home)
	case t.Origin == nil:
		return errOrigin
	case t.Limit.Regions.Mode == descriptor.AtHome:
		return s.takeFar(w, home, t, o)
	case divided(t.Limit):
		return s.takePart(w, home, t, o)
	default:
		return s.takeAccount(w, now, home, t, o)
	}
}

// Peek implements backend.Store. Of a counter whose home is elsewhere it shows what this region knows: its own permits, and what the home
// had left when it answered last.
func (s *Store) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	var rest backend.SubRequest
	w := s.waitOf(ctx)
	defer w.end()
	var errs []error
	for i := range r.Takes {
		t, o := &r.Takes[i], &r.Outcomes[i]
		if !concerns(t.Limit) {
			rest.Add(i, *t)
			continue
		}
		*o = backend.Outcome{}
		if err := s.peek(w, now, t, o); err != nil {
			*o = backend.Outcome{Failed: true}
			errs = append(errs, err)
		}
	}
	if len(rest.Takes) > 0 {
		rest.Prepare()
		errs = append(errs, s.peekTallied(ctx, now, &rest.Request))
		rest.Answer(r)
	}
	return errors.Join(errs...)
}

func (s *Store) peek(w *wait, now time.Time, t *backend.Take, o *backend.Outcome) error {
	home, err := s.homeOf(w, t.Key, t.Limit)
	switch {
	case err != nil:
		return err
	case s.askers[home] == nil && home != s.opts.Region:
		return s.errHome(home)
	case home == s.opts.Region && !divided(t.Limit):
		return s.peekAtHome(w, now, t, o)
	case home != s.opts.Region && t.Origin == nil:
		return errOrigin
	case divided(t.Limit):
		return s.peekPart(w, home, t, o)
	default:
		return s.peekAccount(w, home, t, o)
	}
}

// Reset implements backend.Store. Only the home of a counter can clear it.
func (s *Store) Reset(ctx context.Context, counters []backend.Counter) error {
	w := s.waitOf(ctx)
	defer w.end()
	var rest []backend.Counter
	for i := range counters {
		c := &counters[i]
		if c.Limit == nil || !concerns(c.Limit) {
			rest = append(rest, *c)
			continue
		}
		switch home, err := s.homeOf(w, c.Key, c.Limit); {
		case err != nil:
			return err
		case home != s.opts.Region:
			return fmt.Errorf("the counter belongs to the region %s: reset it there", home)
		}
	}
	var errs []error
	for i := range counters {
		if c := &counters[i]; c.Limit != nil && concerns(c.Limit) {
			errs = append(errs, s.reset(w, c))
			if divided(c.Limit) {
				errs = append(errs, s.refill(w, c))
			}
			rest = append(rest, *c) // it may have been counted by this region alone
		}
	}
	if len(rest) > 0 {
		errs = append(errs, s.opts.Store.Reset(ctx, rest))
	}
	return errors.Join(errs...)
}

// wait is how long a call may wait.
type wait struct {
	caller context.Context //nolint:containedctx // of one call
	ctx    context.Context //nolint:containedctx // ends when the call has to, if several goroutines wait
	cancel context.CancelFunc
	timer  *time.Timer // the same, if only one does
	leave  <-chan time.Time
	own    bool // the caller's deadline ends it, not Options.Timeout
}

// waitOf returns how long a call with a context may wait. Several goroutines may use it.
func (s *Store) waitOf(ctx context.Context) *wait {
	w, left := s.newWait(ctx)
	w.ctx, w.cancel = context.WithTimeout(ctx, left)
	return w
}

// waitAlone is waitOf for one goroutine, which is cheaper.
func (s *Store) waitAlone(ctx context.Context) *wait {
	w, left := s.newWait(ctx)
	w.ctx, w.timer = ctx, time.NewTimer(max(left, 0))
	w.leave = w.timer.C
	return w
}

func (s *Store) newWait(ctx context.Context) (w *wait, left time.Duration) {
	w, left = &wait{caller: ctx}, s.opts.Timeout
	if d, ok := ctx.Deadline(); ok {
		until := time.Until(d)
		if until -= backend.Margin(until, 0); until < left {
			left, w.own = until, true
		}
	}
	return w, left
}

func (w *wait) end() {
	if w.timer != nil {
		w.timer.Stop()
		return
	}
	w.cancel()
}

// until waits for one of two events. It returns an error if the time of the call is over first.
func (w *wait) until(event <-chan struct{}, other <-chan time.Time) error {
	select {
	case <-event:
		return nil
	case <-other:
		return nil
	case <-w.leave:
	case <-w.ctx.Done():
	}
	switch {
	case errors.Is(w.caller.Err(), context.Canceled):
		return context.Canceled
	case w.own || w.caller.Err() != nil:
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	default:
		return fmt.Errorf("%w: no answer in time", backend.ErrUnavailable)
	}
}

// do carries out a step of a record, and waits for it. If it returns an error, the step may run all the same, at any later time.
func do[T any, P kept[T]](w *wait, r *record[T, P], s *step[T]) error {
	done := make(chan struct{})
	var err error
	s.done = func(e error) {
		err = e
		close(done)
	}
	r.add(s)
	if late := w.until(done, nil); late != nil {
		s.gone.Store(true)
		return late
	}
	return err
}

// begin begins a call that the store makes on its own. It returns false after the store has stopped. The end of the call is s.sending.Done.
func (s *Store) begin() bool {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.stopping.Err() != nil {
		return false
	}
	s.sending.Add(1)
	return true
}

// end stops the calls that the store makes on its own, and waits for them.
func (s *Store) end() {
	s.closing.Lock()
	s.stop()
	s.closing.Unlock()
	s.sending.Wait()
}
