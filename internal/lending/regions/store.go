package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Store.
type Options struct {
	Store backend.Store // counts the limits of this region; required
	Peers Peers         // required

	Region  string   // name of this region; required
	Regions []string // all regions, including this one, in any order; required

	Timeout    time.Duration // longest wait for a home, for requests without a deadline; default 1 s
	MaxTallies int           // counters of mode eventual that this replica keeps; default 20,000
	// size of the denial cache of each region in bytes; default 4 MiB; a negative value disables it
	Denials int

	Now func() time.Time // clock for queries of other regions; default time.Now

	Metrics metric.Registry // nil disables metrics
	Logger  *slog.Logger    // default slog.Default()
}

// Store sends each take whose home is another region to that region. It lowers the limits of tallies, and passes all
// other takes on.
type Store struct {
	opts   Options
	counts counts

	others  []string         // the other regions, in order
	far     map[string]*far  // the other regions as stores, by name
	peers   map[string]*peer // status of the other regions, by name
	tallies tallies
	unseen  unseen

	resolver atomic.Pointer[Resolver]
	replica  uint64        // random number of this replica
	resets   atomic.Uint64 // resets of this region's counters that this replica has heard of
	strange  said          // domains, already logged, for which another region names another home

	closing  sync.RWMutex
	stop     context.CancelFunc
	stopping context.Context //nolint:containedctx // context of the calls that the store makes for itself
	sending  sync.WaitGroup
}

// mostRegions is the largest number of regions.
const mostRegions = 64

// New returns a store.
func New(opts Options) (*Store, error) {
	switch {
	case !slices.Contains(opts.Regions, opts.Region):
		return nil, fmt.Errorf("the region %q is not one of %s", opts.Region, strings.Join(opts.Regions, ", "))
	case len(opts.Regions) > mostRegions:
		return nil, fmt.Errorf("%d regions: at most %d", len(opts.Regions), mostRegions)
	}
	if opts.Timeout <= 0 {
		opts.Timeout = time.Second
	}
	if opts.MaxTallies <= 0 {
		opts.MaxTallies = 20_000
	}
	if opts.Denials == 0 {
		opts.Denials = 4 << 20
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Store{
		opts: opts, others: othersOf(opts.Regions, opts.Region), far: make(map[string]*far), peers: make(map[string]*peer),
		replica: rand.Uint64(),
	}
	s.tallies.most, s.tallies.all = opts.MaxTallies, make(map[string]*tally)
	s.stopping, s.stop = context.WithCancel(context.Background())
	for _, name := range s.others {
		s.peers[name] = &peer{}
		s.far[name] = newFar(s, name)
	}
	metric.Register(opts.Metrics, s.families()...)
	return s, nil
}

// SetResolver sets how limits of other regions' queries are found. Until then these queries are not answered.
func (s *Store) SetResolver(r Resolver) { s.resolver.Store(&r) }

// homeOf returns the region that counts a take, or "" if it is this one.
func (s *Store) homeOf(key []byte, l *descriptor.Limit) string {
	if l.Regions == nil || l.Regions.Mode != descriptor.AtHome {
		return ""
	}
	home := l.Regions.Home
	if home == "" {
		if l.Algorithm == descriptor.Penalties {
			key, _ = descriptor.CutPenaltyKey(key) // a penalty lives where its counter lives
		}
		home = HomeOf(key, s.opts.Regions)
	}
	if home == s.opts.Region {
		return ""
	}
	return home
}

// HomeElsewhere returns the region that counts a counter, and whether that is another region.
func (s *Store) HomeElsewhere(key []byte, l *descriptor.Limit) (home string, elsewhere bool) {
	home = s.homeOf(key, l)
	return home, home != ""
}

func (s *Store) place(t *backend.Take) string { return s.homeOf(t.Key, t.Limit) }

// Start implements backend.Store. A request whose counters have several homes runs on a goroutine.
func (s *Store) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	elsewhere, tallied := false, false
	for i := range r.Takes {
		if t := &r.Takes[i]; t.Limit.Regions != nil {
			elsewhere, tallied = elsewhere || s.place(t) != "", tallied || eventual(t.Limit)
		}
	}
	switch {
	case elsewhere:
		if at, alone := s.alone(r); alone {
			return s.startAt(ctx, now, b, at, r, done)
		}
		async.Go(func() error {
			return backend.Split(ctx, r, s.place, func(ctx context.Context, at string, part *backend.Request) error {
				w := async.NewWaiter()
				settled, err := s.startAt(ctx, now, nil, at, part, w.Done)
				return w.Wait(settled, err)
			}, nil) // each place has a denial cache, which sees the returned hits
		}, done)
		return false, nil
	case tallied:
		return s.startTallied(ctx, now, b, r, done)
	default:
		return s.opts.Store.Start(ctx, now, b, r, done)
	}
}

// alone returns the home of the takes if it is the same for all.
func (s *Store) alone(r *backend.Request) (at string, alone bool) {
	at = s.place(&r.Takes[0])
	for i := range r.Takes[1:] {
		if s.place(&r.Takes[i+1]) != at {
			return "", false
		}
	}
	return at, true
}

// startAt settles takes that have the same home.
func (s *Store) startAt(ctx context.Context, now time.Time, b *backend.Batch, at string, r *backend.Request,
	done func(error)) (bool, error) {
	if at == "" {
		return s.startTallied(ctx, now, b, r, done)
	}
	f := s.far[at]
	if f == nil {
		backend.Fail(r.Outcomes)
		return true, s.noRegion(at)
	}
	return f.leases.Start(ctx, now, nil, r, done)
}

func (s *Store) noRegion(name string) error {
	return fmt.Errorf("%w: the home %q of this limit is not one of the regions %s: correct the rule, or "+
		"RATELIMITD_REGIONS",
		backend.ErrUnavailable, name, strings.Join(s.opts.Regions, ", "))
}

// Peek implements backend.Store. It asks the homes.
func (s *Store) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	parts := make(map[string]*backend.SubRequest)
	for i := range r.Takes {
		at := s.place(&r.Takes[i])
		if parts[at] == nil {
			parts[at] = new(backend.SubRequest)
		}
		parts[at].Add(i, r.Takes[i])
	}
	var errs []error
	for at, part := range parts {
		part.Prepare()
		switch f := s.far[at]; {
		case at == "":
			errs = append(errs, s.peekTallied(ctx, now, &part.Request))
		case f == nil:
			backend.Fail(part.Outcomes)
			errs = append(errs, s.noRegion(at))
		default:
			errs = append(errs, f.leases.Peek(ctx, now, &part.Request))
		}
		part.Answer(r)
	}
	return errors.Join(errs...)
}

// Reset implements backend.Store. Only the home of a counter can clear it.
func (s *Store) Reset(ctx context.Context, counters []backend.Counter) error {
	for i := range counters {
		if c := &counters[i]; c.Limit != nil {
			if home, elsewhere := s.HomeElsewhere(c.Key, c.Limit); elsewhere {
				return errResetThere(home)
			}
		}
	}
	defer s.Cleared() // even after an error: the store may have cleared the counters
	return s.opts.Store.Reset(ctx, counters)
}

func errResetThere(home string) error {
	return fmt.Errorf("the counter belongs to the region %s: reset it there", home)
}

// Cleared is called after any replica of this region has cleared counters. The other regions then forget their denials.
func (s *Store) Cleared() { s.resets.Add(1) }

// begin reserves a call that the store makes for itself, and returns false once the store has stopped. When the call
// ends, the caller must call s.sending.Done.
func (s *Store) begin() bool {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.stopping.Err() != nil {
		return false
	}
	s.sending.Add(1)
	return true
}

// Run asks the other regions for their state until ctx ends: every second if this replica holds permits or denials of
// the region, otherwise every five seconds. Then it returns the permits and waits for pending calls.
func (s *Store) Run(ctx context.Context) error {
	defer s.end()
	var leasing sync.WaitGroup
	defer leasing.Wait()
	for _, f := range s.far {
		leasing.Go(func() { _ = f.leases.Run(ctx) }) // it always returns nil
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for n := 0; ; n++ {
		for _, f := range s.far {
			if n%5 == 0 || f.keeps() {
				f.look()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// end stops the calls that the store makes for itself, and waits for them.
func (s *Store) end() {
	s.closing.Lock()
	s.stop()
	s.closing.Unlock()
	s.sending.Wait()
}

// said remembers up to 1,000 logged texts.
type said struct {
	mu   sync.Mutex
	what map[string]bool
}

// first reports whether a text is new. After 1,000 texts it always returns false.
func (s *said) first(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.what[text] || len(s.what) >= 1000 {
		return false
	}
	if s.what == nil {
		s.what = make(map[string]bool)
	}
	s.what[text] = true
	return true
}

// othersOf returns all regions but one, in order.
func othersOf(regions []string, own string) (names []string) {
	for _, name := range regions {
		if name != own {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
