package outages

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// The limits are small enough to be reached in a trial, over a window in which no hit returns. A longer trial
// multiplies them by a factor.
const (
	fewHits    = 20
	hotHits    = 150
	leasedHits = 300
	leasedPart = 20 // processes hold at most this part (1/20) of a leased limit in unused permits
)

func chaosRules(factor int) []string {
	return []string{fmt.Sprintf(`
domain: chaos
descriptors:
  - {key: hot, rate_limit: {unit: year, requests_per_unit: %[1]d}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: %[2]d}}
  - {key: allow, on_error: allow, rate_limit: {unit: year, requests_per_unit: %[2]d}}
  - {key: deny, on_error: deny, rate_limit: {unit: year, requests_per_unit: %[2]d}}
  - {key: local, on_error: local, rate_limit: {unit: year, requests_per_unit: %[2]d}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: %[3]d, lease: true}}
`, factor*hotHits, factor*fewHits, factor*leasedHits), fmt.Sprintf(`
domain: together
admission: all_or_nothing
descriptors:
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: %d}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 1000000}}
`, factor*fewHits)}
}

// counter is one line of the ledger: a limit, and the results of the calls that took from it.
type counter struct {
	value   string // unique among all counters
	onError string
	wide    string // the value of a second counter that its calls take from, all or nothing; may be empty
	limit   int64
	slack   int64 // permits that processes may hold
	request *ratelimitv3.RateLimitRequest

	admitted atomic.Int64   // hits that Redis allowed
	unknown  atomic.Int64   // calls that Redis did not answer in time: it may have counted them
	local    []atomic.Int64 // hits that each process allowed by its own counters

	most int64 // the most hits that may be allowed, including those that Redis lost
}

func chaosCounters(processes, factor int) []*counter {
	var all []*counter
	add := func(key, onError string, values int, hits int64) {
		limit := int64(factor) * hits
		for n := range values {
			value := fmt.Sprintf("%s-%d", key, n)
			c := &counter{value: value, onError: onError, limit: limit, most: limit, local: make([]atomic.Int64, processes)}
			switch key {
			case "narrow":
				c.wide = fmt.Sprintf("wide-%d", n)
				c.request = servicetest.Ask("together", key, value)
				c.request.Descriptors = append(c.request.Descriptors, servicetest.Ask("together", "wide", c.wide).GetDescriptors()...)
			case "leased":
				c.slack = limit / leasedPart
				c.request = servicetest.Ask("chaos", key, value)
			default:
				c.request = servicetest.Ask("chaos", key, value)
			}
			all = append(all, c)
		}
	}
	add("hot", "error", 1, hotHits)
	add("leased", "error", 1, leasedHits)
	for _, onError := range []string{"error", "allow", "deny", "local"} {
		add(onError, onError, 3, fewHits)
	}
	add("narrow", "error", 2, fewHits)
	return all
}

// load calls the processes at an even rate, whether they answer or not, and keeps the ledger.
type load struct {
	t        *testing.T
	timeout  time.Duration // the service's
	counters []*counter
	clients  []ratelimitv3.RateLimitServiceClient
	away     []atomic.Bool // killed processes: calls to them get errors

	gate       sync.RWMutex // held for reading by every call
	calls      sync.WaitGroup
	complaints atomic.Int64
	lastError  atomic.Value // the last error of a call that was allowed to fail

	mu    sync.Mutex
	sick  bool // while set, calls are recorded in tally
	tally tally
}

// tally sums up the calls that were made while Redis was sick.
type tally struct {
	calls, served int64
	past          *hdrhistogram.Histogram // how long after the deadline calls ended that waited for it, in microseconds
	seen          map[string]int64        // answers without Redis, by on_error
	longest       time.Duration           // the duration of the slowest call
	of            string                  // the counter of that call
	bare          *hdrhistogram.Histogram // duration of calls that need no Redis, in microseconds: the machine's own cost
	stall         time.Duration           // the longest time for which this process did not run
}

func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, time.Minute.Microseconds(), 3) }

func newLoad(t *testing.T, timeout time.Duration, factor int, processes ...*servicetest.Process) *load {
	t.Helper()
	l := &load{
		t: t, timeout: timeout, counters: chaosCounters(len(processes), factor), away: make([]atomic.Bool, len(processes)),
		tally: tally{past: histogram(), bare: histogram(), seen: make(map[string]int64)},
	}
	for _, p := range processes {
		// Connect again quickly: a client that waits a second would hide how soon the service is back.
		conn := servicetest.Dial(t, p.GRPC, grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}, MinConnectTimeout: patience,
		}))
		l.clients = append(l.clients, ratelimitv3.NewRateLimitServiceClient(conn))
	}
	return l
}

// start sends this number of calls a second until the returned function is called, which waits for all answers.
func (l *load) start(rate int) (stop func()) {
	ctx, cancel := context.WithCancel(l.t.Context())
	l.calls.Go(func() { l.watch(ctx) })
	l.calls.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if n%16 < len(l.clients) {
				l.calls.Go(func() { l.callBare(n % len(l.clients)) })
				continue
			}
			c := l.counters[rand.IntN(len(l.counters))]
			if n%4 == 0 {
				c = l.counters[rand.IntN(2)] // one of the hot counters
			}
			l.calls.Go(func() { l.call(n%len(l.clients), c, true) })
		}
	})
	stop = func() { cancel(); l.calls.Wait() }
	l.t.Cleanup(stop) // the calls end with the test, even if it fails
	return stop
}

// watch measures for how long this process does not run. Such delays are not the service's fault.
func (l *load) watch(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ctx.Err() == nil; {
		<-tick.C
		now := time.Now()
		l.mu.Lock()
		l.tally.stall = max(l.tally.stall, now.Sub(last))
		l.mu.Unlock()
		last = now
	}
}

// call calls one process and enters the answer in the ledger. It returns whether Redis decided, and whether the call
// passed. If tallied is set, the call counts as part of the load.
func (l *load) call(process int, c *counter, tallied bool) (served, admitted bool) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	away := l.away[process].Load()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the service's own timeout bounds the call
	defer cancel()
	start := time.Now()
	got, err := l.clients[process].ShouldRateLimit(ctx, c.request)
	took := time.Since(start)
	away = away || l.away[process].Load()

	how := header(got, "x-ratelimit-degraded")
	ok := got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK
	switch {
	case err != nil && status.Code(err) == codes.Unavailable && (c.onError == "error" || away):
		how = "error"
		c.unknown.Add(1)
		l.lastError.Store(err.Error())
	case err != nil:
		l.complain("a call for %s with on_error: %s failed: %v", c.value, c.onError, err)
	case strings.HasPrefix(how, "no header"):
		served, admitted = true, ok
		if ok {
			c.admitted.Add(1)
		}
	case how != c.onError, how == "error", how == "allow" && !ok, how == "deny" && ok:
		l.complain("a call for %s with on_error: %s was answered %s by %s", c.value, c.onError, got.GetOverallCode(), how)
	default:
		c.unknown.Add(1)
		if how == "local" && ok {
			c.local[process].Add(1)
		}
	}
	if tallied {
		l.record(c, took, served, how)
	}
	return served, admitted
}

// callBare sends a process a request that has no limit.
func (l *load) callBare(process int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	away := l.away[process].Load()
	start := time.Now()
	_, err := l.clients[process].ShouldRateLimit(ctx, servicetest.Ask("chaos", "unlimited", "v"))
	took := time.Since(start)
	if err != nil && !away && !l.away[process].Load() {
		l.complain("a call that needs no Redis failed: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sick {
		_ = l.tally.bare.RecordValue(took.Microseconds())
	}
}

func (l *load) record(c *counter, took time.Duration, served bool, how string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sick {
		return
	}
	l.tally.calls++
	if served {
		l.tally.served++
	} else {
		l.tally.seen[how]++
	}
	if took > l.tally.longest {
		l.tally.longest, l.tally.of = took, c.value
	}
	if took >= l.timeout {
		_ = l.tally.past.RecordValue((took - l.timeout).Microseconds())
	}
}

// complain fails the test and logs a limited number of messages.
func (l *load) complain(format string, args ...any) {
	if l.complaints.Add(1) <= 10 {
		l.t.Errorf(format, args...)
	}
}

func (l *load) setSick(sick bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sick = sick
}

// still waits until no call is in flight, and holds new calls back until do has returned.
func (l *load) still(do func()) {
	l.gate.Lock()
	defer l.gate.Unlock()
	do()
}

// admitted returns a copy of the ledger's counts of allowed hits.
func (l *load) admitted() map[*counter]int64 {
	all := make(map[*counter]int64, len(l.counters))
	for _, c := range l.counters {
		all[c] = c.admitted.Load()
	}
	return all
}

// served calls every process for every counter until Redis decides, and returns how long that took.
func (l *load) served(what string) time.Duration {
	l.t.Helper()
	start := time.Now()
	var wg sync.WaitGroup
	for p := range l.clients {
		wg.Go(func() {
			pause := time.NewTicker(2 * time.Millisecond)
			defer pause.Stop()
			for _, c := range l.counters {
				for {
					if ok, _ := l.call(p, c, false); ok {
						break
					}
					if time.Since(start) > patience {
						l.t.Errorf("%s: process %d is not served for %s within %s", what, p, c.value, patience)
						return
					}
					<-pause.C
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// exhaust takes from every counter until Redis denies, or until more hits than the limit were allowed.
func (l *load) exhaust() {
	l.t.Helper()
	start := time.Now()
	todo := make(chan *counter, len(l.counters))
	for _, c := range l.counters {
		todo <- c
	}
	close(todo)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for c := range todo {
				denied := 0
				for n := 0; denied < 2*len(l.clients) && c.admitted.Load() <= c.most; n++ {
					if time.Since(start) > 2*patience {
						l.t.Errorf("%s does not end: %d admitted after %d calls", c.value, c.admitted.Load(), n)
						return
					}
					switch served, admitted := l.call(n%len(l.clients), c, false); {
					case admitted:
						denied = 0
					case served:
						denied++
					}
				}
			}
		})
	}
	wg.Wait()
}

// onErrors are the kinds of answers without Redis.
var onErrors = []string{"error", "allow", "deny", "local"}

// sawAll reports whether each kind was seen.
func (l *load) sawAll() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, how := range onErrors {
		if l.tally.seen[how] == 0 {
			return false
		}
	}
	return true
}
