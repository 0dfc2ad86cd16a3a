package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// Layout describes the servers behind an address, and so which keys may share a script. One address may lead to several
// servers: behind a proxy that routes by key, a script sees only the keys of one of them, and would count a second
// counter on the wrong server, without an error.
type Layout int32

// The layouts.
const (
	// LayoutUnknown is the layout until a probe has found another one. Until then each script has the keys of one counter.
	LayoutUnknown Layout = iota
	// OneServer is a server that accepts any keys in a script.
	OneServer
	// Slots is a cluster, or a service that accepts only keys of one slot in a script, as a cluster does. Keys with the
	// same text in braces are in the same slot.
	Slots
	// Servers is a proxy that sends each script to the server of its first key.
	Servers
)

const (
	// probeKeys is how many keys a probe tries. If two servers have equal shares, all keys lead to the same one in one of
	// 2^31 probes. A proxy that has only one server now is noticed by its other answers.
	probeKeys = 32
	// probeWithin bounds a probe that no Ping waits for, and probeEvery is the time between two of them.
	probeWithin, probeEvery = 3 * time.Second, time.Second
)

// anything is a script that needs nothing but the right to run it.
const anything = "return 1"

// mixed returns a text for the number of a key. Texts differ in all letters: twemproxy's usual hash sends keys that
// differ in the last one to the same server.
func mixed(i int) string { return strconv.FormatUint(uint64(i+1)*0x9e3779b97f4a7c15, 16) }

// FindLayout detects the layout behind the address of a client that is not a cluster's. With an error, no call can be
// answered now. Without one, the layout may still be unknown, because some answers were missing. The keys that it uses
// start with prefix.
func FindLayout(ctx context.Context, client goredis.UniversalClient, prefix string) (found Layout, reason, err error) {
	ctx = redisconn.Probe(ctx)
	for range 3 {
		if found, reason, err = probe(ctx, client, prefix); !errors.Is(err, errClockSet) {
			return found, reason, err
		}
	}
	return LayoutUnknown, nil, nil
}

// errClockSet is why a probe has no result: the server's clock was set during the probe.
var errClockSet = errors.New("the server's clock was set during the probe")

// probe is one try of FindLayout.
func probe(ctx context.Context, client goredis.UniversalClient, prefix string) (found Layout, reason, err error) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	name := prefix + ProbeKey + ":" + hex.EncodeToString(id[:]) + ":"
	pipe, route := client.Pipeline(), scripts.Route()
	var one, two [probeKeys]*goredis.Cmd
	for i := range one {
		key := name + mixed(i)
		one[i] = pipe.Eval(ctx, anything, []string{key})
		two[i] = pipe.Eval(ctx, route.Text, []string{key, name}, i)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	defer func() {
		pipe := client.Pipeline()
		for i := range two {
			if mark, err := two[i].Int(); err == nil && mark == i { // the first call on its server
				pipe.Eval(ctx, scripts.Forget().Text, []string{name + mixed(i), name})
			}
		}
		_, _ = pipe.Exec(ctx) // remaining keys expire
	}()

	var moved, failed, crossed, denied, unwritten error
	marks, changes, before, answers := make(map[string]bool), 0, "", 0
	for i := range one {
		if err := one[i].Err(); err != nil {
			if goredis.HasErrorPrefix(err, "MOVED") {
				moved = err
			}
			failed = err
			continue
		}
		answers++
		mark, err := two[i].Text()
		switch {
		case err == nil:
			if len(marks) > 0 && mark != before {
				changes++
			}
			marks[mark], before = true, mark
		case isCrossSlot(err):
			crossed = err
		case isDenial(err):
			denied = err
		default:
			unwritten = err
		}
	}
	switch {
	case moved != nil:
		return Slots, moved, moved
	case answers == 0 && mayNotUseKeys(failed):
		return LayoutUnknown, nil, nil
	case answers == 0:
		return LayoutUnknown, nil, failed
	case crossed != nil:
		return Slots, crossed, nil
	case denied != nil && len(marks) == 0:
		return Slots, denied, nil
	case len(marks) > 1 && changes < len(marks):
		// a mark that expires, because the server's clock is set, has another one after it
		return LayoutUnknown, nil, errClockSet
	case len(marks) > 1:
		return Servers, fmt.Errorf("%d keys led to %d servers", probeKeys, len(marks)), nil
	case len(marks) == 0 && !goredis.HasErrorPrefix(unwritten, "OOM"): // a full server still denies
		return LayoutUnknown, nil, unwritten
	case failed != nil || denied != nil || unwritten != nil:
		return LayoutUnknown, nil, nil
	}
	return findProxy(ctx, client, name)
}

// findProxy tells a server from a proxy that has only one server now: a proxy cannot route a script without keys.
func findProxy(ctx context.Context, client goredis.UniversalClient, key string) (found Layout, reason, err error) {
	for range 2 { // if the connection breaks it may be by chance
		reason = client.Eval(ctx, anything, nil).Err()
		switch {
		case reason == nil:
			return OneServer, nil, nil
		case isDenial(reason):
			return Servers, fmt.Errorf("a script without keys was denied: %w", reason), nil
		case redisconn.IsTimeout(reason) || errors.As(reason, new(goredis.Error)):
			return LayoutUnknown, nil, nil
		}
		if err := client.Eval(ctx, anything, []string{key}).Err(); err != nil {
			return LayoutUnknown, nil, err
		}
	}
	return Servers, fmt.Errorf("a script without keys ends the connection: %w", reason), nil
}

// ErrServers is the reason for denying a feature that needs all keys on one server.
var ErrServers = errors.New("a proxy that sends each key to one of several servers is behind this address")

// OneKeyspace returns ErrServers if a client's keys are on servers that know nothing of each other: streams and scripts
// of several keys are not possible there. sure is false if that could not be found out.
func OneKeyspace(ctx context.Context, client goredis.UniversalClient, prefix string) (sure bool, err error) {
	if _, cluster := client.(*goredis.ClusterClient); cluster {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	found, reason, err := FindLayout(ctx, client, prefix)
	if found == Servers {
		return true, fmt.Errorf("%w: %w", ErrServers, reason)
	}
	return found != LayoutUnknown && err == nil, nil
}

// isCrossSlot reports whether a script was not run because its keys are in several slots.
func isCrossSlot(err error) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && (goredis.HasErrorPrefix(err, "CROSSSLOT") ||
		strings.Contains(err.Error(), "same slot"))
}

// isDenial reports whether a server, or a proxy, will always answer so, and not because of the user's rights.
func isDenial(err error) bool {
	var answer goredis.Error
	return errors.As(err, &answer) && !redisconn.IsTransient(answer) && !isDeniedRight(err) &&
		!goredis.HasErrorPrefix(err, "MOVED") && !goredis.HasErrorPrefix(err, "ASK")
}

func isDeniedRight(err error) bool { return strings.Contains(err.Error(), "NOPERM") }

// mayNotUseKeys reports whether the user may run scripts, but has no right for the keys of a probe.
func mayNotUseKeys(err error) bool {
	return isDeniedRight(err) && strings.Contains(err.Error(), "key")
}

// apart reports whether each call has the keys of one counter.
func (s *Store) apart() bool { return Layout(s.layout.Load()) != OneServer }

// search is the search for the layout, in the background.
type search struct {
	mu    sync.Mutex
	next  time.Time     // when another search may start
	ended chan struct{} // closed when the latest one has ended
	work  sync.WaitGroup

	opened atomic.Uint64 // how many connections had been opened when the layout was found

	life context.Context // ends with Close
	end  context.CancelFunc
}

// look starts a search for the layout, if it is unknown. It returns a channel that is closed when the search has ended.
func (s *Store) look() (ended <-chan struct{}) {
	if Layout(s.layout.Load()) != LayoutUnknown {
		return nil
	}
	return s.begin()
}

// lookAgain starts another search for the layout of a server if connections were opened since the last one: they may
// lead to other servers.
func (s *Store) lookAgain() {
	if c := s.opts.Connections; c != nil && c.Opened() != s.search.opened.Load() {
		s.begin()
	}
}

// stop ends a search and prevents further ones. A call may still start at this time, for example in the goroutines of
// records.
func (l *search) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// begin starts a search, unless one has started a moment ago.
func (s *Store) begin() (ended <-chan struct{}) {
	l := &s.search
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.next) || l.life.Err() != nil {
		return l.ended
	}
	done := make(chan struct{})
	l.ended, l.next = done, time.Now().Add(probeWithin+probeEvery)
	l.work.Go(func() {
		ctx, cancel := context.WithTimeout(l.life, probeWithin)
		defer cancel()
		_ = s.find(ctx) // a later call looks again
		l.mu.Lock()
		defer l.mu.Unlock()
		close(done)
		l.next = time.Now().Add(probeEvery)
	})
	return done
}

// known returns the layout. If it is unknown, known waits until a search has ended.
func (s *Store) known(ctx context.Context) Layout {
	if ended := s.look(); ended != nil {
		bounded, cancel := s.bound(ctx)
		defer cancel()
		select {
		case <-ended:
		case <-bounded.Done():
		}
	}
	return Layout(s.layout.Load())
}

// find finds the layout. Its error is FindLayout's.
func (s *Store) find(ctx context.Context) error {
	found, reason, err := FindLayout(ctx, s.opts.Client, s.opts.KeyPrefix)
	if found == LayoutUnknown {
		return err
	}
	if c := s.opts.Connections; c != nil {
		s.search.opened.Store(c.Opened())
	}
	if found != OneServer {
		s.settleOn(found, reason)
	} else {
		s.layout.CompareAndSwap(int32(LayoutUnknown), int32(OneServer)) // a call may have met several slots in the meantime
	}
	return err
}

// settleOn uses a layout from now on, and logs it once.
func (s *Store) settleOn(found Layout, reason error) {
	if reason != nil && goredis.HasErrorPrefix(reason, "MOVED") && !s.movedSaid.Swap(true) {
		s.opts.Logger.Error("this Redis is a node of a cluster, and counters on other nodes cannot be reached: set "+
			cmp.Or(s.opts.Settings, "REDIS")+"_TYPE=CLUSTER",
			"settings", s.opts.Settings, "error", reason)
	}
	if Layout(s.layout.Swap(int32(found))) == found {
		return
	}
	s.opts.Logger.Warn("several servers or slots are behind this address: from now on each script gets the keys of "+
		"one counter",
		"settings", s.opts.Settings, "found", reason)
}

// crossed reports whether a call was not run because its keys are in several slots. If the error shows slots, the store
// sends the keys of each counter apart from now on.
func (s *Store) crossed(err error) bool {
	if err == nil || s.cluster {
		return false
	}
	crossed := isCrossSlot(err)
	if crossed || goredis.HasErrorPrefix(err, "MOVED") {
		s.settleOn(max(Slots, Layout(s.layout.Load())), err)
	}
	return crossed
}

// runsScripts asks a server to run a script. Of several servers, one answer is enough: that server's counters can be
// used.
func (s *Store) runsScripts(ctx context.Context) error {
	ctx = redisconn.Probe(ctx)
	pipe, asked := s.opts.Client.Pipeline(), make([]*goredis.Cmd, 1, probeKeys)
	if s.apart() {
		asked = asked[:probeKeys]
	}
	for i := range asked {
		asked[i] = pipe.Eval(ctx, anything, []string{s.opts.KeyPrefix + ProbeKey + ":" + mixed(i)})
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	answered, failed := false, error(nil)
	for _, a := range asked {
		switch err := a.Err(); {
		case err == nil || mayNotUseKeys(err):
			answered = true
		case goredis.HasErrorPrefix(err, "MOVED"):
			s.settleOn(Slots, err)
			return err
		default:
			failed = err
		}
	}
	if answered {
		return nil
	}
	return failed
}
