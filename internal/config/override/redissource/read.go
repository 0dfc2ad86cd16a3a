package redissource

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
)

const (
	checkEvery = time.Second // versions are compared so often, even without a change in the stream
	longestGap = time.Second // between attempts to reach Redis
	pageSize   = 1000        // fields of a hash, or changes, in one answer

	headWithin = 2 * time.Second // bounds the question for the newest version, which a start waits for
)

// position is how far a replica has read.
type position struct {
	version int64
	id      string // identifier of the write that made this version
	born    string // identifier of the very first write
}

// reader follows Redis for Run. One goroutine uses it.
type reader struct {
	*Source
	apply func(*override.Set)

	set      *override.Set // the active set; nil before the first read
	at       position      // position of set
	loaded   bool          // set was read from Redis, and only changes after at are missing
	loadedAt time.Time
	checked  time.Time // when versions were last compared
	trouble  trouble   // trouble of the last attempt
}

// trouble is why an attempt to read failed.
type trouble int

const (
	noTrouble  trouble = iota
	noAnswer           // Redis does not answer, or cannot: this ends without help
	unreadable         // somebody has written something else under our keys
)

func troubleOf(err error) trouble {
	switch {
	case err == nil:
		return noTrouble
	case errors.Is(err, strconv.ErrSyntax), errors.Is(err, strconv.ErrRange), goredis.HasErrorPrefix(err, "WRONGTYPE"):
		return unreadable
	default:
		return noAnswer
	}
}

var (
	errGap       = errors.New("changes are missing in the stream")
	errRegressed = errors.New("changes are lost in Redis")
)

// Run implements override.Source. It returns nil when ctx ends.
func (s *Source) Run(ctx context.Context, apply func(*override.Set)) error {
	r := &reader{Source: s, apply: apply}
	if s.copies != nil {
		r.startFromCopy()
		stop := s.copies.run()
		defer stop()
	}
	pause := time.Duration(0)
	for ctx.Err() == nil {
		err := r.step(ctx)
		if ctx.Err() != nil {
			break
		}
		s.closeOnce.Do(func() { close(s.tried) })
		if r.report(err); err == nil {
			pause = 0
			continue
		}
		pause = min(max(2*pause, 50*time.Millisecond), longestGap)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (r *reader) startFromCopy() {
	set, at, err := r.copies.read()
	switch {
	case errors.Is(err, errNoCopy):
		return
	case err != nil:
		r.o.Log.Error("the copy of the overrides cannot be used", "file", r.o.Copy, "error", err)
		return
	}
	r.at = at
	r.use(set)
	r.o.Log.Info("active overrides, from the last good copy until Redis answers", "file", r.o.Copy, "overrides", set.Len(),
		"version", set.Version)
}

// use puts a set into force.
func (r *reader) use(set *override.Set) {
	r.set = set
	r.metrics.Hold(set)
	r.apply(set)
}

// report logs when reading starts to fail, and when it works again.
func (r *reader) report(err error) {
	r.metrics.SetUp(err == nil)
	now := troubleOf(err)
	if now == r.trouble {
		return
	}
	r.trouble = now
	switch {
	case err == nil:
		r.o.Log.Info("the overrides can be read again", "overrides", r.set.Len(), "version", r.at.version)
	case r.set == nil:
		r.o.Log.Error("the overrides cannot be read, and there is no copy of them: requests are decided without overrides "+
			"until Redis answers", "error", err)
	case now == unreadable:
		r.o.Log.Error("the overrides in Redis are damaged: the last good overrides stay active, and changes have no effect",
			"overrides", r.set.Len(), "version", r.at.version, "keys", r.key("*"), "error", err)
	default:
		r.o.Log.Warn("the overrides cannot be read: the previous overrides stay active", "overrides", r.set.Len(), "version",
			r.at.version, "error", err)
	}
}

// step loads all overrides if that is necessary, else it waits for changes for at most a second.
func (r *reader) step(ctx context.Context) error {
	if !r.loaded {
		return r.load(ctx)
	}
	err := r.follow(ctx)
	switch {
	case errors.Is(err, errGap):
		r.o.Log.Info("overrides are read again, because the stream does not have all changes any more", "after_version",
			r.at.version)
		r.loaded = false
		select { // if many write, or somebody has changed the stream by hand, the next place may be gone too
		case <-ctx.Done():
		case <-time.After(longestGap - time.Since(r.loadedAt)):
		}
		return r.load(ctx)
	case errors.Is(err, errRegressed):
		r.loaded = false
		return r.load(ctx)
	}
	return err
}

// head returns the newest version in Redis.
func (r *reader) head(ctx context.Context) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, headWithin)
	defer cancel()
	values, err := r.o.Client.HMGet(ctx, r.versionKey(), "n", "id", "born").Result()
	if err != nil {
		return position{}, fmt.Errorf("read the version of the overrides: %w", err)
	}
	var p position
	n, ok := values[0].(string)
	if !ok {
		return p, nil // nothing was ever written
	}
	if p.version, err = strconv.ParseInt(n, 10, 64); err != nil {
		return p, fmt.Errorf("read the version of the overrides: %w", err)
	}
	p.id, _ = values[1].(string)
	p.born, _ = values[2].(string)
	return p, nil
}

// continues reports whether a position in Redis can be a later one of the same history.
func (p position) continues(from position) bool {
	switch {
	case from.version == 0:
		return true
	case p.version < from.version, p.born != from.born:
		return false
	default:
		return p.version > from.version || p.id == from.id
	}
}

// load reads all overrides.
func (r *reader) load(ctx context.Context) error {
	start := time.Now()
	if err := r.usable(ctx); err != nil {
		return err
	}
	head, err := r.head(ctx)
	if err != nil {
		return err
	}
	continues := head.continues(r.at)
	if continues && head.version > r.at.version && r.at.version > 0 {
		if continues, err = r.isInStream(ctx, r.at); err != nil {
			return err
		}
	}
	bad := 0
	set := override.NewSet(head.version, func(yield func(*override.Identity, override.Numbers) bool) {
		bad, err = r.each(ctx, yield)
	})
	if err != nil {
		return err
	}
	if !continues {
		r.regressed(head)
	}
	if bad > 0 {
		r.o.Log.Error("records of overrides in Redis cannot be read; they have no effect", "records", bad, "key",
			r.key("domain:*"))
	}
	r.at, r.loaded, r.loadedAt, r.checked = head, true, time.Now(), start
	r.use(set)
	if r.copies != nil {
		r.copies.keep(set, head)
	}
	r.o.Log.Info("active overrides", "overrides", set.Len(), "version", head.version, "read_in",
		time.Since(start).Round(time.Millisecond))
	return nil
}

// isInStream reports whether the change that made a version is in the stream, or was removed from it because it is old.
func (r *reader) isInStream(ctx context.Context, p position) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	id := entryID(p.version)
	found, err := r.o.Client.XRange(ctx, r.changesKey(), id, id).Result()
	if err != nil {
		return false, fmt.Errorf("read changes of overrides: %w", err)
	}
	return len(found) == 0 || found[0].Values["id"] == p.id, nil
}

// regressed raises the alarm: Redis has older overrides than this replica read before.
func (r *reader) regressed(head position) {
	r.metrics.Regressed()
	about := []any{"version_before", r.at.version, "version_now", head.version}
	if r.copies == nil {
		about = append(about, "hint", "set RATELIMITD_OVERRIDES_COPY so that the overrides of before are kept in a file")
	}
	r.o.Log.Error("Redis has lost changes of overrides: it is empty, or was restored from older data. Its overrides "+
		"are active now", about...)
	if r.copies != nil && r.set.Len() > 0 {
		r.copies.keepAside(r.set, r.at)
	}
}

// each reads all records page by page, and returns how many could not be read. While one page is decoded, the next one
// is on its way.
func (r *reader) each(ctx context.Context, yield func(*override.Identity, override.Numbers) bool) (bad int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pages := make(chan []string, 1)
	var failed error // set before pages is closed
	go func() {
		defer close(pages)
		failed = r.pages(ctx, pages)
	}()
	for page := range pages {
		for i := 1; i < len(page); i += 2 {
			o, err := parse(page[i])
			if err != nil {
				bad++
				continue
			}
			if !yield(&o.Identity, o.Numbers) {
				return bad, nil
			}
		}
	}
	return bad, failed
}

// pages sends the fields and records of all domains, in pages.
func (r *reader) pages(ctx context.Context, to chan<- []string) error {
	domains, err := r.domains(ctx)
	if err != nil {
		return fmt.Errorf("read the overrides: %w", err)
	}
	for _, domain := range domains {
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			var pairs []string
			err := inPages(func(count int64) (err error) {
				ctx, cancel := context.WithTimeout(ctx, answerWithin)
				defer cancel()
				pairs, cursor, err = r.o.Client.HScan(ctx, r.recordsKey(domain), cursor, "", count).Result()
				return err //nolint:wrapcheck // it is below
			})
			if err != nil {
				return fmt.Errorf("read the overrides: %w", err)
			}
			select {
			case to <- pairs:
			case <-ctx.Done():
				return ctx.Err() //nolint:wrapcheck // it is not read
			}
		}
	}
	return nil
}

// follow waits for changes and applies them.
func (r *reader) follow(ctx context.Context) error {
	n, err := r.readChanges(ctx, checkEvery)
	if err != nil || n > 0 && time.Since(r.checked) < checkEvery {
		return err
	}
	head, err := r.head(ctx)
	if err != nil {
		return err
	}
	r.checked = time.Now()
	switch {
	case !head.continues(r.at):
		return errRegressed
	case head.version == r.at.version:
		return nil
	}
	if n, err = r.readChanges(ctx, -1); err == nil && n == 0 {
		return errGap
	}
	return err
}

// readChanges applies the changes after the position. It waits for one if wait is not negative.
func (r *reader) readChanges(ctx context.Context, wait time.Duration) (int, error) {
	var streams []goredis.XStream
	err := inPages(func(count int64) (err error) {
		ctx, cancel := context.WithTimeout(ctx, max(wait, 0)+answerWithin/2)
		defer cancel()
		streams, err = r.o.Client.XRead(ctx, &goredis.XReadArgs{
			Streams: []string{r.changesKey(), entryID(r.at.version)}, Count: count, Block: wait,
		}).Result()
		return err //nolint:wrapcheck // it is below
	})
	if errors.Is(err, goredis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read changes of overrides: %w", err)
	}
	if len(streams) == 0 || len(streams[0].Messages) == 0 {
		return 0, nil
	}
	at := r.at
	changes := make([]override.Change, 0, len(streams[0].Messages))
	for _, m := range streams[0].Messages {
		e := readEntry(m)
		switch {
		case e.version != at.version+1:
			return 0, errGap
		case at.version > 0 && e.prev != at.id:
			return 0, errRegressed
		}
		if at.version == 0 {
			at.born = e.id
		}
		at.version, at.id = e.version, e.id
		change, err := e.change()
		if err != nil {
			r.o.Log.Error("a change of overrides in Redis cannot be read; it has no effect", "version", e.version, "error", err)
			continue
		}
		changes = append(changes, change)
	}
	r.at = at
	r.use(r.set.With(at.version, changes))
	if r.copies != nil {
		r.copies.keep(r.set, at)
	}
	return len(streams[0].Messages), nil
}

// entry is one change in the stream.
type entry struct {
	version        int64
	id, prev       string
	at             time.Time
	author, reason string
	before, after  string
}

// entryID is the identifier in the stream of the change that made a version.
func entryID(version int64) string { return strconv.FormatInt(version, 10) + "-0" }

func readEntry(m goredis.XMessage) entry {
	text := func(name string) string {
		s, _ := m.Values[name].(string)
		return s
	}
	n, _, _ := strings.Cut(m.ID, "-")
	version, _ := strconv.ParseInt(n, 10, 64)  // the first part of an identifier is a number
	at, _ := time.Parse(changedAt, text("at")) // the zero time if somebody has changed it by hand
	return entry{
		version: version, id: text("id"), prev: text("prev"), at: at,
		author: text("author"), reason: text("reason"), before: text("before"), after: text("after"),
	}
}

// change converts the entry into a change of a set.
func (e *entry) change() (override.Change, error) {
	if e.after != "" {
		o, err := parse(e.after)
		if err != nil {
			return override.Change{}, err
		}
		return override.Change{Identity: o.Identity, Numbers: o.Numbers}, nil
	}
	o, err := parse(e.before)
	if err != nil {
		return override.Change{}, err
	}
	return override.Change{Identity: o.Identity}, nil
}
