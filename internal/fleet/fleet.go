package fleet

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// Options are the settings of a Fleet.
type Options struct {
	// Self returns what this process says of itself. It must not wait. Required.
	Self func() Process

	// Client reaches the Redis that the processes share; nil: this process is alone. It should not be the client that counts.
	Client goredis.UniversalClient
	Prefix string // of every key

	Every time.Duration // between two announcements of this process; default 5 s

	Log *slog.Logger // default slog.Default()
}

const (
	maxProcesses = 1000            // further ones are not listed
	kept         = 5 * time.Minute // how long a process is listed after it was last seen
	missed       = 3               // announcements that a process misses until it is gone

	answerWithin = time.Second // bounds an announcement, with the list
	fresh        = time.Second // a list is not read again before
	pageSize     = 100         // processes that are read with one call, so that it does not hold up Redis

	// Without being asked, a process reads the list once a minute, and more rarely in a large fleet, because all processes do.
	readEvery   = time.Minute
	readPerPeer = 600 * time.Millisecond
)

// Fleet is this process among those that share a Redis.
type Fleet struct {
	o  Options
	id string

	reading singleflight.Group

	mu        sync.Mutex
	measured  time.Time // when the next three were last measured
	decisions Decisions
	rates     Rates
	versions  [3]int64 // of the overrides, at the last three times
	left      bool     // this process has stopped

	others     []Process // as they were read
	readAt     time.Time // zero: never
	unreadable int
	total      int
	failed     error // of the last attempt to reach Redis

	logged string // the error that was logged last; of Run alone
}

// New returns a Fleet that announces itself while Run runs.
func New(o Options) *Fleet {
	if o.Every <= 0 {
		o.Every = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	name := make([]byte, 8)
	_, _ = rand.Read(name) // it never fails
	return &Fleet{o: o, id: hex.EncodeToString(name)}
}

// ID is the name of this process. It has another one after a restart.
func (f *Fleet) ID() string { return f.id }

// Run announces this process every Options.Every. When ctx ends, it announces that the process has stopped, and returns nil.
func (f *Fleet) Run(ctx context.Context) error {
	tick := time.NewTicker(f.o.Every)
	defer tick.Stop()
	var lastRead time.Time
	for {
		now := time.Now()
		f.measure(now)
		if f.o.Client != nil {
			read := now.Sub(lastRead) >= f.readAfter()
			err := f.announce(ctx, read)
			if err == nil && read {
				lastRead = now
			}
			f.report(ctx, err)
		}
		select {
		case <-ctx.Done():
			f.leave(ctx)
			return nil
		case <-tick.C:
		}
	}
}

func (f *Fleet) readAfter() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(readEvery, time.Duration(f.total)*readPerPeer)
}

// report logs why other processes do not list this one, unless Redis does not answer: others log that.
func (f *Fleet) report(ctx context.Context, err error) {
	answer := goredis.Error(nil)
	switch {
	case ctx.Err() != nil, err != nil && !errors.Is(err, errFull) && !errors.As(err, &answer):
		return
	case err == nil:
		f.logged = ""
		return
	case err.Error() == f.logged:
		return
	}
	f.logged = err.Error()
	f.o.Log.Warn("other processes do not list this one; docs/do/redis.md has the rights that the user of Redis needs", "keys", f.o.Prefix+"{fleet}:*", "error", err)
}

// measure makes the rates, and keeps the version of the overrides.
func (f *Fleet) measure(now time.Time) {
	self := f.o.Self()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.measured.IsZero() {
		f.rates = self.Decisions.since(f.decisions, now.Sub(f.measured))
	}
	f.decisions, f.measured = self.Decisions, now
	f.versions = [3]int64{f.versions[1], f.versions[2], self.Overrides.Version}
}

// says is what this process says of itself now.
func (f *Fleet) says(now time.Time) Process {
	p := f.o.Self()
	f.mu.Lock()
	defer f.mu.Unlock()
	p.ID, p.Seen, p.PerSecond = f.id, now, f.rates
	p.Overrides.Earlier = min(f.versions[0], p.Overrides.Version) // Redis may have lost changes meanwhile
	if f.left {
		p.Stopped, p.State = true, Stopped
	}
	return p
}

func (f *Fleet) leave(ctx context.Context) {
	f.mu.Lock()
	f.left = true
	f.mu.Unlock()
	if f.o.Client != nil {
		_ = f.announce(context.WithoutCancel(ctx), false) // without it, this process is gone after a while
	}
}

// The keys are in one slot of a cluster.

func (f *Fleet) seenKey() string { return f.o.Prefix + "{fleet}:seen" } // a sorted set
func (f *Fleet) saidKey() string { return f.o.Prefix + "{fleet}:said" } // a hash

var (
	//go:embed announce.lua
	announceLua string
	//go:embed read.lua
	readLua string

	announceScript, readScript = goredis.NewScript(announceLua), goredis.NewScript(readLua)

	errFull = fmt.Errorf("the list of processes is full: it has %d", maxProcesses)
)

// announce writes what this process says of itself, and reads what the others say if that is wanted.
func (f *Fleet) announce(ctx context.Context, read bool) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	list := 0
	if read {
		list = 1
	}
	now := time.Now()
	answer, err := announceScript.Run(ctx, f.o.Client, []string{f.seenKey(), f.saidKey()}, f.id, f.says(now).encode(), list,
		maxProcesses, (missed * f.o.Every).Milliseconds(), kept.Milliseconds()).Slice()
	if err == nil {
		err = f.learn(ctx, now, answer, read)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed = err; errors.Is(err, errFull) {
		f.failed = nil // the list could be read
	}
	if err != nil {
		return fmt.Errorf("announce this process: %w", err)
	}
	return nil
}

// learn keeps the answer of the script.
func (f *Fleet) learn(ctx context.Context, now time.Time, answer []any, read bool) error {
	if len(answer) < 3 || len(answer)%2 != 1 {
		return fmt.Errorf("the answer has %d parts", len(answer))
	}
	room, _ := answer[0].(int64)
	at, _ := answer[1].(int64)
	total, _ := answer[2].(int64)
	var others []Process
	unreadable := 0
	for page := range slices.Chunk(answer[3:], 2*pageSize) {
		args := []any{maxRecord}
		for i := 0; i < len(page); i += 2 {
			args = append(args, page[i])
		}
		texts, err := readScript.Run(ctx, f.o.Client, []string{f.saidKey()}, args...).StringSlice()
		if err != nil {
			return fmt.Errorf("read what the others say: %w", err)
		}
		for i, text := range texts[:min(len(texts), len(page)/2)] {
			name, _ := page[2*i].(string)
			if name == f.id {
				continue
			}
			p, err := decode(name, text)
			if err != nil {
				unreadable++
				continue
			}
			score, _ := page[2*i+1].(string)
			ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
			age := time.Duration(min(max(float64(at)-ms, 0), float64(kept.Milliseconds()))) * time.Millisecond
			p.Seen = now.Add(-age)
			switch {
			case p.Stopped:
				p.State = Stopped
			case age >= missed*f.o.Every:
				p.State = Gone
			}
			others = append(others, p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total = int(total)
	if read {
		f.others, f.readAt, f.unreadable = others, now, unreadable
	}
	if room != 1 {
		return errFull
	}
	return nil
}

// View is what is known of the processes.
type View struct {
	Self      string    // the ID of this process
	Shared    bool      // it shares a Redis with others
	Processes []Process // those with trouble first
	ReadAt    time.Time // when the others were read; zero: never
	Err       error     // why they could not be read now

	Unreadable int // entries that no process of this version writes
	More       int // processes that are not in the list
}

// List returns the processes that share the Redis, or what was last known of them if it does not answer.
func (f *Fleet) List(ctx context.Context) View {
	if f.o.Client == nil {
		return f.view(time.Now())
	}
	done := f.reading.DoChan("", func() (any, error) {
		f.mu.Lock()
		known := f.failed == nil && time.Since(f.readAt) < fresh
		f.mu.Unlock()
		if !known {
			_ = f.announce(context.WithoutCancel(ctx), true) // the view has the error
		}
		return nil, nil //nolint:nilnil // the view is made by each caller
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return f.view(time.Now())
}

func (f *Fleet) view(now time.Time) View {
	self := f.says(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	v := View{
		Self: f.id, Shared: f.o.Client != nil, Processes: append([]Process{self}, f.others...), ReadAt: f.readAt, Err: f.failed,
		Unreadable: f.unreadable, More: max(f.total-maxProcesses, 0),
	}
	compare(v.Processes, f.o.Every)
	sort(v.Processes)
	return v
}
