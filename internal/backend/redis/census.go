package redis

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
)

// CensusOptions are the settings of a Census.
type CensusOptions struct {
	Store *Store // whose Redis the processes share; required
	Key   string // where they are written down; required

	Every time.Duration // how often this process says that it is there; default 2 s
	Lives time.Duration // for how long one counts that says nothing any more; default 10 s

	Changed func(n int) // called by Run when the number is another one

	Logger *slog.Logger // default slog.Default()
}

// Census counts the processes that share a Redis. Each writes down there, again and again, that it is there, and learns how many are. One that
// leaves says so; one that was killed is forgotten after CensusOptions.Lives, by Redis' clock.
//
// A number that grew is believed at once, one that fell when it was seen keptNumbers times in a row: when Redis comes back empty, or was
// stopped for a while, the others have yet to say that they are there. While Redis is gone the last number stays.
type Census struct {
	opts CensusOptions
	name string
	seen [keptNumbers]int // the latest numbers
	next int              // place in seen
	last int              // what Changed was called with

	refused bool // Redis refuses to count processes; it was logged
}

const (
	keptNumbers  = 8
	maxProcesses = 1000        // that are counted: the list is one value in Redis
	leaveWithin  = time.Second // for a process that ends to say so
)

// NewCensus returns a census that this process is not part of yet.
func NewCensus(opts CensusOptions) *Census {
	if opts.Every <= 0 {
		opts.Every = 2 * time.Second
	}
	if opts.Lives <= 0 {
		opts.Lives = 10 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	name := make([]byte, 8)
	_, _ = rand.Read(name) // it never fails
	return &Census{opts: opts, name: hex.EncodeToString(name)}
}

// Run takes part until ctx ends. It returns nil.
func (c *Census) Run(ctx context.Context) error {
	next := time.NewTimer(c.opts.Every)
	defer next.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, c.opts.Every)
		n, err := c.Beat(within)
		cancel()
		c.note(ctx, n, err)
		next.Reset(c.opts.Every) // a Redis that hangs is left to calls for a while
		select {
		case <-ctx.Done():
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWithin)
			defer cancel()
			_ = c.Leave(within) // else it is forgotten after a while
			return nil
		case <-next.C:
		}
	}
}

// note acts on what Beat found.
func (c *Census) note(ctx context.Context, n int, err error) {
	if answer := goredis.Error(nil); errors.As(err, &answer) {
		if !c.refused && ctx.Err() == nil && !passing(answer) {
			c.refused = true
			c.opts.Logger.Warn("Redis does not count the processes that share it: set RATELIMITD_REPLICAS, or let this user write the key", "key", c.opts.Key, "error", err)
		}
		return
	}
	if err == nil && n != c.last {
		c.last = n
		c.opts.Changed(n)
	}
}

// passing says whether an error is one of a server that will count processes again.
func passing(err goredis.Error) bool {
	return slices.ContainsFunc([]string{"OOM", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "BUSY", "NOAUTH"},
		func(state string) bool { return strings.Contains(err.Error(), state) })
}

// Beat says that this process is there, and returns how many are believed to be.
func (c *Census) Beat(ctx context.Context) (int, error) {
	n, err := c.ask(ctx, "1")
	if err != nil {
		return 0, fmt.Errorf("count the processes that share Redis: %w", err)
	}
	c.seen[c.next%keptNumbers] = n
	c.next++
	return slices.Max(c.seen[:]), nil
}

// Leave says that this process is not there any more.
func (c *Census) Leave(ctx context.Context) error {
	if _, err := c.ask(ctx, "0"); err != nil {
		return fmt.Errorf("leave the processes that share Redis: %w", err)
	}
	return nil
}

func (c *Census) ask(ctx context.Context, there string) (int, error) {
	ctx = redisconn.Probe(ctx)
	s := c.opts.Store
	at := uint64(0) // Redis' clock decides
	if s.CallerClock() {
		at = uint64(time.Now().UnixMicro())
	}
	terms := packedArg(binary.LittleEndian.AppendUint64(nil, at))
	client, script, keys := s.opts.Client, scripts.Census(), []string{c.opts.Key}
	args := []any{&terms, c.name, c.opts.Lives.Milliseconds(), there, maxProcesses}
	n, err := client.EvalSha(ctx, script.Hash, keys, args...).Int()
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = client.Eval(ctx, script.Text, keys, args...).Int()
	}
	if err != nil && goredis.HasErrorPrefix(err, noTime) {
		s.refuse(err)
		return c.ask(ctx, there) // by this process' clock
	}
	return n, err
}
