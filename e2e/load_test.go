package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load are requests that come at an even pace, whatever happens. Each caller has a connection of its own and one request
// under way at most; what is not answered within patience is a failure.
type load struct {
	stopping context.CancelFunc
	callers  sync.WaitGroup
	phase    atomic.Int32

	mu      sync.Mutex
	tallies map[int32]tally // by the phase in which a request was sent
}

// tally is what became of requests.
type tally struct {
	Answered, Refused int // 200, 429
	Failed            int // anything else, or nothing at all
	failures          map[string]int
	slowest           time.Duration
}

func (s tally) sent() int { return s.Answered + s.Refused + s.Failed }

func (s tally) plus(o tally) tally {
	sum := tally{s.Answered + o.Answered, s.Refused + o.Refused, s.Failed + o.Failed, maps.Clone(s.failures), max(s.slowest, o.slowest)}
	if sum.failures == nil {
		sum.failures = make(map[string]int)
	}
	for what, n := range o.failures {
		sum.failures[what] += n
	}
	return sum
}

func (s tally) String() string {
	text := fmt.Sprintf("%d sent, %d answered, %d refused, %d failed; the slowest took %v", s.sent(), s.Answered, s.Refused, s.Failed, s.slowest.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(s.failures)) {
		text += fmt.Sprintf("\n%d times %s", s.failures[what], what)
	}
	return text
}

const (
	callers   = 8
	perSecond = 400 // requests of all callers together
)

// startLoad sends requests to a listener of these Envoys, for so many users in turn (x-user), until it is
// stopped; it ends with the test.
func startLoad(t *testing.T, listener, path string, users int, envoys ...*envoy) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stopping: cancel, tallies: make(map[int32]tally)}
	for i := range callers {
		e := envoys[i%len(envoys)]
		l.callers.Go(func() { l.call(ctx, i, "http://"+e.ports[listener]+path, users) })
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// call sends one caller's requests.
func (l *load) call(ctx context.Context, caller int, url string, users int) {
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	tick := time.NewTicker(time.Second * callers / perSecond)
	defer tick.Stop()
	for i := caller; ; i += callers {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		phase, start := l.phase.Load(), time.Now()
		var one tally
		// A POST: the client would send a GET again by itself, and hide that one was lost.
		req, err := http.NewRequest(http.MethodPost, url, http.NoBody)
		if err == nil {
			req.Header.Set("X-User", fmt.Sprint(i%users))
			err = one.send(client, req)
		}
		if err != nil {
			one.Failed, one.failures = 1, map[string]int{err.Error(): 1}
		}
		one.slowest = time.Since(start)
		l.mu.Lock()
		l.tallies[phase] = l.tallies[phase].plus(one)
		l.mu.Unlock()
	}
}

func (s *tally) send(client *http.Client, req *http.Request) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	switch {
	case err != nil:
		return err
	case res.StatusCode == http.StatusOK:
		s.Answered++
	case res.StatusCode == http.StatusTooManyRequests:
		s.Refused++
	default:
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// next begins a phase, waits until at least n requests that were sent in it have come back, and returns what became of
// those.
func (l *load) next(t *testing.T, n int) tally {
	t.Helper()
	phase := l.phase.Add(1)
	var got tally
	await(t, "requests to come back", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if got = l.tallies[phase]; got.sent() < n {
			return errors.New("only " + got.String())
		}
		return nil
	})
	return got
}

// stop sends no more requests, waits for those under way, and returns what became of all.
func (l *load) stop() tally {
	l.stopping()
	l.callers.Wait()
	var all tally
	for _, phase := range l.tallies {
		all = all.plus(phase)
	}
	return all
}
