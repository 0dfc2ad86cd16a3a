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

// load sends requests at an even pace, however long the answers take. Each client has its own connection and at most
// one request in flight. A request that is not answered within patience is a failure.
type load struct {
	stopping context.CancelFunc
	callers  sync.WaitGroup
	phase    atomic.Int32

	mu      sync.Mutex
	tallies map[int32]tally // results by phase; a request belongs to the phase in which it was sent
}

// tally counts the results of requests.
type tally struct {
	Answered, Denied int // 200, 429
	Failed           int // any other status, or no answer
	failures         map[string]int
	slowest          time.Duration
}

func (s tally) sent() int { return s.Answered + s.Denied + s.Failed }

func (s tally) plus(o tally) tally {
	sum := tally{s.Answered + o.Answered, s.Denied + o.Denied, s.Failed + o.Failed, maps.Clone(s.failures), max(s.slowest, o.slowest)}
	if sum.failures == nil {
		sum.failures = make(map[string]int)
	}
	for what, n := range o.failures {
		sum.failures[what] += n
	}
	return sum
}

func (s tally) String() string {
	text := fmt.Sprintf("%d sent, %d answered, %d denied, %d failed; the slowest took %v", s.sent(), s.Answered, s.Denied, s.Failed, s.slowest.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(s.failures)) {
		text += fmt.Sprintf("\n%d times %s", s.failures[what], what)
	}
	return text
}

const (
	callers   = 8
	perSecond = 400 // requests per second of all clients together
)

// startLoad sends requests to a listener of these Envoys until it is stopped, for this number of users in turn
// (x-user). It stops at the end of the test.
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

// call sends one client's requests.
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
		// This is a POST, because the client would repeat a GET without telling us and hide a lost request.
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
		s.Denied++
	default:
		return fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// next starts a phase, waits for at least n results of requests sent in it, and returns the tally of the phase.
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

// stop sends no more requests, waits for the requests in flight, and returns the total tally.
func (l *load) stop() tally {
	l.stopping()
	l.callers.Wait()
	var all tally
	for _, phase := range l.tallies {
		all = all.plus(phase)
	}
	return all
}
