package fleet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// Options are the settings of a Fleet.
type Options struct {
	// Beat writes the name of this replica to the list of replicas that share a Redis, or takes the name off the list if
	// the replica leaves. It returns how many replicas are on the list. A replica stays on the list for the time lives
	// after its last beat. Nil if this replica shares its Redis with no other.
	Beat func(ctx context.Context, name string, lives time.Duration, leaves bool) (int, error)

	// Run calls Changed when the number of replicas has changed. May be nil.
	Changed func(n int)

	// Self returns this replica's status record. It must not wait. With nil the replica is only counted, and List must not
	// be called.
	Self func() Replica

	Client goredis.UniversalClient // reaches the Redis of the list. It should not be the client that counts
	Names  string                  // key of the list that Beat writes
	Prefix string                  // prefix of the keys of status records

	Every time.Duration // time between two beats; default 2 s
	Lives time.Duration // how long a replica is on the list after its last beat; default 10 s

	Log *slog.Logger // default slog.Default()
}

const (
	keptNumbers = 8               // a lower number of replicas is used after it was seen this many times
	kept        = 5 * time.Minute // how long a replica is listed after it was last seen

	answerWithin = time.Second // time limit for reads and writes, except Beat
	fresh        = time.Second // least time between two reads of the list
	pageSize     = 100         // replicas that are read with one call, so that it does not block Redis
	maxNames     = 64 << 10    // bytes of the list that are read, enough for 1,000 names

	// Without being asked, a replica reads the list once a minute, and more rarely in a large fleet, because all replicas
	// do.
	readEvery   = time.Minute
	readPerPeer = 600 * time.Millisecond
)

// Fleet is this replica among the replicas that share a Redis.
type Fleet struct {
	o  Options
	id string

	reading singleflight.Group

	mu        sync.Mutex
	measured  time.Time // when the next three were last measured
	decisions Decisions
	rates     Rates
	versions  [3]int64 // versions of the overrides at the last three measurements
	left      bool     // this replica has stopped
	beatAt    time.Time

	others     []Replica // latest records of the other replicas
	readAt     time.Time // zero before the first read
	unreadable int
	silent     int   // replicas on the list without a record
	failed     error // error of the last attempt to reach Redis

	// Only Run uses these.
	seen   [keptNumbers]int // the latest numbers of replicas
	next   int              // index in seen
	last   int              // the argument of the latest call of Changed
	logged string           // the error that was logged last
}

// New returns a Fleet whose first beat, while Run runs, puts this replica on the list.
func New(o Options) *Fleet {
	if o.Every <= 0 {
		o.Every = 2 * time.Second
	}
	if o.Lives <= 0 {
		o.Lives = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	name := make([]byte, 8)
	_, _ = rand.Read(name) // it never fails
	return &Fleet{o: o, id: hex.EncodeToString(name)}
}

// ID is the name of this replica. It changes with a restart.
func (f *Fleet) ID() string { return f.id }

// Run writes heartbeats and this replica's record. When ctx ends, it removes this replica from the list, and returns
// nil.
func (f *Fleet) Run(ctx context.Context) error {
	next := time.NewTimer(f.o.Every)
	defer next.Stop()
	var lastRead time.Time
	for {
		now := time.Now()
		f.measure(now)
		if f.o.Beat != nil {
			err := f.beat(ctx)
			if f.o.Self != nil && now.Sub(lastRead) >= f.readAfter() && f.read(ctx) == nil {
				lastRead = now
			}
			f.report(ctx, err)
		}
		next.Reset(f.o.Every) // counted from the end of the beat, to have a pause even after a slow one
		select {
		case <-ctx.Done():
			f.leave(ctx)
			return nil
		case <-next.C:
		}
	}
}

func (f *Fleet) readAfter() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(readEvery, time.Duration(len(f.others))*readPerPeer)
}

// beat sends a heartbeat, and writes this replica's record.
func (f *Fleet) beat(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, f.o.Every)
	defer cancel()
	n, err := f.o.Beat(within, f.id, f.o.Lives, false)
	if err == nil {
		f.mu.Lock()
		f.beatAt = time.Now()
		f.mu.Unlock()
		f.count(n)
	}
	if f.o.Self != nil {
		err = errors.Join(err, f.say(ctx))
	}
	return err
}

// count calls Changed if the number of replicas has changed. A higher number is used immediately, and a lower one only
// after it was seen keptNumbers times in a row: after Redis was emptied, or stopped for a while, the heartbeats of the
// others have yet to arrive. While Redis does not answer, the last number stays.
func (f *Fleet) count(n int) {
	f.seen[f.next%keptNumbers] = n
	f.next++
	if n = slices.Max(f.seen[:]); n != f.last {
		f.last = n
		if f.o.Changed != nil {
			f.o.Changed(n)
		}
	}
}

// report logs, once, that Redis rejects this replica's writes. If Redis does not answer at all, other packages log
// that.
func (f *Fleet) report(ctx context.Context, err error) {
	answer := goredis.Error(nil)
	switch {
	case ctx.Err() != nil, err != nil && !errors.As(err, &answer), answer != nil &&
		(redisconn.IsTransient(answer) || redisconn.IsMistake(err)):
		return
	case err == nil:
		f.logged = ""
		return
	case err.Error() == f.logged:
		return
	}
	f.logged = err.Error()
	f.o.Log.Warn("other replicas do not count or list this one: give the user of Redis the rights in "+
		"docs/reference/redis-keys.md",
		"keys", []string{f.o.Names, f.saidKey("*")}, "error", err)
}

// measure makes the rates, and keeps the version of the overrides.
func (f *Fleet) measure(now time.Time) {
	if f.o.Self == nil {
		return
	}
	self := f.o.Self()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.measured.IsZero() {
		f.rates = self.Decisions.since(f.decisions, now.Sub(f.measured))
	}
	f.decisions, f.measured = self.Decisions, now
	f.versions = [3]int64{f.versions[1], f.versions[2], self.Overrides.Version}
}

// says returns the current record of this replica.
func (f *Fleet) says(now time.Time) Replica {
	p := f.o.Self()
	f.mu.Lock()
	defer f.mu.Unlock()
	p.ID, p.Seen, p.PerSecond = f.id, now, f.rates
	p.Overrides.Earlier = min(f.versions[0], p.Overrides.Version) // Redis may have lost changes in between
	if f.left {
		p.Stopped, p.State = true, Stopped
	}
	return p
}

func (f *Fleet) leave(ctx context.Context) {
	f.mu.Lock()
	f.left = true
	f.mu.Unlock()
	if f.o.Beat == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	if f.o.Self != nil {
		_ = f.say(ctx)
	}
	_, _ = f.o.Beat(ctx, f.id, f.o.Lives, true) // if it fails, the replica is forgotten after a while
}

// saidKey returns the key of a replica's record. All records are in one slot of a cluster.
func (f *Fleet) saidKey(name string) string { return f.o.Prefix + "{fleet}:" + name }

// say writes this replica's record.
func (f *Fleet) say(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := f.o.Client.Set(ctx, f.saidKey(f.id), f.says(time.Now()).encode(), kept).Err()
	if err != nil {
		err = fmt.Errorf("write what this replica says: %w", err)
	}
	f.mu.Lock()
	f.failed = err
	f.mu.Unlock()
	return err
}

// read reads the list and the records of the other replicas. A replica that is no longer on the list has stopped or was
// killed.
func (f *Fleet) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	now := time.Now()
	f.mu.Lock()
	seen := make(map[string]time.Time, len(f.others))
	for i := range f.others {
		if p := &f.others[i]; now.Sub(p.Seen) < kept {
			seen[p.ID] = p.Seen
		}
	}
	beatAt := f.beatAt
	f.mu.Unlock()

	others, unreadable, silent, err := f.learn(ctx, seen, now, beatAt)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed = err; err == nil {
		f.others, f.readAt, f.unreadable, f.silent = others, now, unreadable, silent
	}
	return err
}

// learn is read without the lock. seen contains the replicas that were known before.
func (f *Fleet) learn(ctx context.Context, seen map[string]time.Time, now,
	beatAt time.Time) (others []Replica, unreadable, silent int, err error) {
	list, err := f.o.Client.GetRange(ctx, f.o.Names, 0, maxNames).Result()
	if err != nil {
		return nil, 0, 0, fmt.Errorf("read the list of replicas: %w", err)
	}
	live := f.namesOf(list, now, beatAt)
	maps.Copy(seen, live)
	delete(seen, f.id)
	for names := range slices.Chunk(slices.Sorted(maps.Keys(seen)), pageSize) {
		answers, err := f.o.Client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, name := range names {
				p.GetRange(ctx, f.saidKey(name), 0, maxRecord)
			}
			return nil
		})
		if err != nil && !goredis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, 0, 0, fmt.Errorf("read what the others say: %w", err)
		}
		for i, name := range names {
			_, isLive := live[name]
			text, err := answers[i].(*goredis.StringCmd).Result()
			if err == nil && text == "" {
				if isLive {
					silent++
				}
				continue
			}
			p, bad := decode(name, text)
			if err != nil || bad != nil {
				unreadable++
				continue
			}
			switch p.Seen = seen[name]; {
			case p.Stopped:
				p.State = Stopped
			case !isLive:
				p.State = Gone
			}
			others = append(others, p)
		}
	}
	return others, unreadable, silent, nil
}

var aName = regexp.MustCompile(`(?m)^([0-9a-f]{16}) ([0-9]{1,15})$`)

// namesOf returns the names on the list with the times of their last beats by the clock of this replica. The list has
// them by the clock of Redis; the difference is known from this replica's own beat, or else from the newest one.
func (f *Fleet) namesOf(list string, now, beatAt time.Time) map[string]time.Time {
	beats := make(map[string]int64)
	newest := int64(0)
	for _, m := range aName.FindAllStringSubmatch(list, -1) {
		ms, _ := strconv.ParseInt(m[2], 10, 64) // it cannot fail: aName matches at most 15 digits
		beats[m[1]] = ms
		newest = max(newest, ms)
	}
	here := now
	if own, ok := beats[f.id]; ok {
		newest, here = own, beatAt
	}
	names := make(map[string]time.Time, len(beats))
	for name, ms := range beats {
		age := time.Duration(min(max(newest-ms, 0), kept.Milliseconds())) * time.Millisecond
		names[name] = here.Add(-age)
	}
	return names
}

// View is the list of replicas as this one last read it.
type View struct {
	Self     string    // the ID of this replica
	Shared   bool      // it shares a Redis with others
	Replicas []Replica // replicas with trouble first
	ReadAt   time.Time // when the others were read; zero before the first read
	Err      error     // why they could not be read now

	Unreadable int // entries that no replica of this version writes
	// processes that share the Redis and write no record, such as Go programs with package ratelimit
	More int
}

// List returns the replicas that share the Redis. If it does not answer, List returns the last state that was read.
func (f *Fleet) List(ctx context.Context) View {
	if f.o.Beat == nil {
		return f.view(time.Now())
	}
	done := f.reading.DoChan("", func() (any, error) {
		f.mu.Lock()
		known := f.failed == nil && time.Since(f.readAt) < fresh
		f.mu.Unlock()
		if !known {
			_ = f.read(context.WithoutCancel(ctx)) // the view has the error
		}
		return nil, nil //nolint:nilnil // each caller makes a view
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
		Self: f.id, Shared: f.o.Beat != nil, Replicas: append([]Replica{self}, f.others...), ReadAt: f.readAt, Err: f.failed,
		Unreadable: f.unreadable, More: f.silent,
	}
	compare(v.Replicas, f.o.Every)
	sort(v.Replicas)
	return v
}
