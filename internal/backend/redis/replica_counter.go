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

// ReplicaCounterOptions are the settings of a ReplicaCounter.
type ReplicaCounterOptions struct {
	Store *Store // whose Redis the processes share; required
	Key   string // key of the list of processes; required

	Every time.Duration // between two heartbeats of this process; default 2 s
	Lives time.Duration // how long a process counts after its last heartbeat; default 10 s

	Changed func(n int) // called by Run when the number has changed

	Logger *slog.Logger // default slog.Default()
}

// ReplicaCounter counts the processes that share a Redis. Each process writes heartbeats to a list in Redis, and the answer
// contains the number of processes in the list. A process that stops removes itself. A process that was killed is removed
// after ReplicaCounterOptions.Lives, by Redis' clock.
//
// A higher number is used at once. A lower number is used only after it was seen keptNumbers times in a row: when Redis
// comes back empty, or was stopped for a while, the other processes' heartbeats have yet to arrive. While Redis is
// unreachable the last number stays.
type ReplicaCounter struct {
	opts ReplicaCounterOptions
	name string           // of this process
	seen [keptNumbers]int // the latest numbers
	next int              // index in seen
	last int              // the argument of the latest call of Changed

	logged bool // it was logged that Redis refuses the heartbeats
}

const (
	keptNumbers  = 8
	maxProcesses = 1000        // most processes that are counted: the list is one value in Redis
	leaveTimeout = time.Second // to leave the list
)

// NewReplicaCounter returns a counter. The first heartbeat adds this process to the list.
func NewReplicaCounter(opts ReplicaCounterOptions) *ReplicaCounter {
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
	return &ReplicaCounter{opts: opts, name: hex.EncodeToString(name)}
}

// Run sends heartbeats until ctx ends. It returns nil.
func (c *ReplicaCounter) Run(ctx context.Context) error {
	next := time.NewTimer(c.opts.Every)
	defer next.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, c.opts.Every)
		n, err := c.Beat(within)
		cancel()
		c.handle(ctx, n, err)
		next.Reset(c.opts.Every) // counted from the end of the heartbeat, so that a slow one is not followed by another at once
		select {
		case <-ctx.Done():
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
			defer cancel()
			_ = c.Leave(within) // if it fails, the process is forgotten after a while
			return nil
		case <-next.C:
		}
	}
}

// handle acts on the result of a heartbeat.
func (c *ReplicaCounter) handle(ctx context.Context, n int, err error) {
	if answer := goredis.Error(nil); errors.As(err, &answer) {
		if !c.logged && ctx.Err() == nil && !isTransient(answer) {
			c.logged = true
			c.opts.Logger.Warn("Redis does not count the processes that share it: set RATELIMITD_REPLICAS, or let this user write the key", "key", c.opts.Key, "error", err)
		}
		return
	}
	if err == nil && n != c.last {
		c.last = n
		c.opts.Changed(n)
	}
}

// isTransient reports whether a server that answers with this error will accept heartbeats again later.
func isTransient(err goredis.Error) bool {
	return slices.ContainsFunc([]string{"OOM", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS", "BUSY", "NOAUTH"},
		func(state string) bool { return strings.Contains(err.Error(), state) })
}

// Beat sends a heartbeat, and returns how many processes there are.
func (c *ReplicaCounter) Beat(ctx context.Context) (int, error) {
	n, err := c.send(ctx, "1")
	if err != nil {
		return 0, fmt.Errorf("count the processes that share Redis: %w", err)
	}
	c.seen[c.next%keptNumbers] = n
	c.next++
	return slices.Max(c.seen[:]), nil
}

// Leave removes this process from the list.
func (c *ReplicaCounter) Leave(ctx context.Context) error {
	if _, err := c.send(ctx, "0"); err != nil {
		return fmt.Errorf("leave the processes that share Redis: %w", err)
	}
	return nil
}

func (c *ReplicaCounter) send(ctx context.Context, alive string) (int, error) {
	ctx = redisconn.Probe(ctx)
	s := c.opts.Store
	at := uint64(0) // Redis' clock decides
	if s.CallerClock() {
		at = uint64(time.Now().UnixMicro())
	}
	terms := packedArg(binary.LittleEndian.AppendUint64(nil, at))
	client, script, keys := s.opts.Client, scripts.Replicas(), []string{c.opts.Key}
	args := []any{&terms, c.name, c.opts.Lives.Milliseconds(), alive, maxProcesses}
	n, err := client.EvalSha(ctx, script.Hash, keys, args...).Int()
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = client.Eval(ctx, script.Text, keys, args...).Int()
	}
	if err != nil && goredis.HasErrorPrefix(err, noTime) {
		s.useCallerClock(err)
		return c.send(ctx, alive) // this time by this process' clock
	}
	return n, err
}
