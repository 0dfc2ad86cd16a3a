package redissource

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options configure the connection and the place of the overrides.
type Options struct {
	// Client reaches Redis. One of its connections waits for changes all the time. It has no breaker: a breaker would see
	// the wait for the next change as a server that does not answer.
	Client goredis.UniversalClient

	Prefix string // prefix of every key

	// Usable returns an error if overrides cannot be kept behind the client's address. It is asked before overrides are
	// read or written, until it is sure. Nil: they can be.
	Usable func(context.Context) (sure bool, err error)

	// Copy is the path of a file that keeps the last overrides that were read, for a start without Redis. Default:
	// none.
	Copy string

	Log     *slog.Logger    // default slog.Default()
	Metrics metric.Registry // if nil, metrics are counted but not registered
}

// Source keeps overrides in Redis. It implements override.Shared.
type Source struct {
	o       Options
	metrics *override.Metrics
	copies  *copies // nil without a file

	sound     atomic.Bool   // Usable was sure
	tried     chan struct{} // closed after the first attempt to read
	closeOnce sync.Once
}

var _ override.Shared = (*Source)(nil)

// New returns a source. It does not connect yet.
func New(o Options) *Source {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &Source{o: o, metrics: override.NewMetrics(o.Metrics), tried: make(chan struct{})}
	if o.Copy != "" {
		s.copies = newCopies(o.Copy, o.Log)
	}
	return s
}

// Tried is closed after the first attempt of Run to read the overrides from Redis, whether it succeeded or not.
func (s *Source) Tried() <-chan struct{} { return s.tried }

// Up reports whether Redis answered when it was last asked.
func (s *Source) Up() bool { return s.metrics.Up() }

// usable returns an error if overrides cannot be kept there.
func (s *Source) usable(ctx context.Context) error {
	if s.o.Usable == nil || s.sound.Load() {
		return nil
	}
	sure, err := s.o.Usable(ctx)
	if err != nil {
		return fmt.Errorf("overrides cannot be kept here, because all of them must be on one server: keep them in a file, "+
			"or connect to one Redis or a cluster: %w", err)
	}
	s.sound.Store(sure)
	return nil
}

// The keys are in one slot of a cluster, so that one script can change them all.

func (s *Source) key(name string) string { return s.o.Prefix + "{overrides}:" + name }

func (s *Source) versionKey() string { return s.key("version") } // a hash: n, id, born, count
func (s *Source) changesKey() string { return s.key("changes") } // a stream
func (s *Source) domainsKey() string { return s.key("domains") } // a set
func (s *Source) turnKey() string    { return s.key("turn") }    // anything, while it is the turn of some replica

// a hash: Identity.String() to its record
func (s *Source) recordsKey(domain string) string { return s.key("domain:" + domain) }

// a sorted set of the fields of that hash
func (s *Source) orderKey(domain string) string { return s.key("order:" + domain) }

// Get implements override.Source. A record that cannot be read counts as none.
func (s *Source) Get(ctx context.Context, which []override.Identity) ([]*override.Override, error) {
	places := make(map[string][]int) // indexes in which, by domain
	for i := range which {
		places[which[i].Domain] = append(places[which[i].Domain], i)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	all := make([]*override.Override, len(which))
	for domain, at := range places {
		fields := make([]string, len(at))
		for k, i := range at {
			fields[k] = which[i].String()
		}
		texts, err := s.texts(ctx, domain, fields)
		if err != nil {
			return nil, fmt.Errorf("read overrides: %w", err)
		}
		for k, i := range at {
			text, _ := texts[k].(string)
			all[i] = optional(text)
		}
	}
	return all, nil
}

// Turn implements override.Shared.
func (s *Source) Turn(ctx context.Context, span time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := s.o.Client.SetArgs(ctx, s.turnKey(), "", goredis.SetArgs{Mode: "NX", TTL: span}).Err()
	switch {
	case errors.Is(err, goredis.Nil):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask Redis whose turn it is: %w", err)
	}
	return true, nil
}

// changedAt is the form of times of changes in Redis.
const changedAt = "2006-01-02T15:04:05.000Z07:00"

// answerWithin bounds a call to Redis.
const answerWithin = 10 * time.Second

//go:embed write.lua
var writeLua string

var writeScript = goredis.NewScript(writeLua)

var errFull = fmt.Errorf("%w: there would be more than %d: remove some first", override.ErrFull, override.MaxOverrides)

// Write implements override.Source. Each edit gets a separate version.
func (s *Source) Write(ctx context.Context, author string, edits []override.Edit) ([]override.Override, error) {
	if len(edits) == 0 {
		return nil, nil
	}
	if err := override.CheckEdits(author, edits); err != nil {
		return nil, err //nolint:wrapcheck // the text is complete
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	keys := []string{s.versionKey(), s.changesKey(), s.domainsKey()}
	args := []any{rand.Text(), now.Format(changedAt), author, override.MaxOverrides}
	domains := make(map[string]int)
	written := make([]override.Override, len(edits))
	for i := range edits {
		o := edits[i].Override
		o.Author, o.Changed = author, now
		written[i] = o
		var text []byte
		if !edits[i].Remove {
			var err error
			if text, err = body(o); err != nil {
				return nil, &override.EditError{Index: i, Err: err}
			}
		}
		if domains[o.Domain] == 0 {
			domains[o.Domain] = len(domains) + 1
			keys = append(keys, s.recordsKey(o.Domain), s.orderKey(o.Domain))
		}
		expect := ""
		if edits[i].Expect != nil {
			expect = strconv.FormatInt(*edits[i].Expect, 10)
		}
		args = append(args, domains[o.Domain], o.Domain, o.String(), expect, o.Reason, text)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	answer, err := writeScript.Run(ctx, s.o.Client, keys, args...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("write overrides to Redis: %w", err)
	}
	switch {
	case len(answer) == 3 && answer[0] == "conflict":
		i, err1 := strconv.Atoi(answer[1])
		found, err2 := strconv.ParseInt(answer[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil || i >= len(edits) {
			return nil, fmt.Errorf("read the answer of Redis: %q", answer)
		}
		return nil, &override.ConflictError{Identity: edits[i].Identity, Expected: *edits[i].Expect, Found: found}
	case len(answer) == 1 && answer[0] == "full":
		return nil, errFull
	case len(answer) != len(edits)+1:
		return nil, fmt.Errorf("read the answer of Redis: %q", answer)
	}
	for i := range written {
		if written[i].Version, err = strconv.ParseInt(answer[i+1], 10, 64); err != nil {
			return nil, fmt.Errorf("read the answer of Redis: %w", err)
		}
	}
	return written, nil
}
