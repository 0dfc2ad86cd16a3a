package outages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// away is a round trip between two regions.
const away = 80 * time.Millisecond

// limitOfRegions is the limit of each counter of the rules below.
const limitOfRegions = 1200

const rulesOfRegions = `
domain: d
on_error: deny
descriptors:
  - key: home
    rate_limit: {unit: day, requests_per_unit: 1200, regions: {home: eu}}
`

// world is three regions with two replicas and a Redis each. Between two regions there is a proxy for each direction,
// which forwards the questions of one region to the other.
type world struct {
	t       *testing.T
	names   []string
	rules   map[string]string // directory of each region
	redis   map[string]*redistest.Server
	env     map[string]map[string]string
	listen  map[string][]string  // region ports of the replicas
	proxies map[[2]string]*proxy // proxies by the regions from and to which they forward

	mu       sync.Mutex
	replicas map[string][2]replica
}

// replica is one process, and a connection to it.
type replica struct {
	*servicetest.Process
	client ratelimitv3.RateLimitServiceClient
}

func startWorld(t *testing.T, rules string) *world {
	servicetest.NotAtMidnight()
	w := &world{
		t: t, names: []string{"eu", "us", "ap"}, rules: make(map[string]string), redis: make(map[string]*redistest.Server),
		env: make(map[string]map[string]string), listen: make(map[string][]string), proxies: make(map[[2]string]*proxy), replicas: make(map[string][2]replica),
	}
	ca := tlstest.NewAuthority(t, "regions")
	dir := t.TempDir()
	put := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	relays := make(map[string]string) // each in front of the region ports of both replicas
	for _, name := range w.names {
		w.listen[name] = []string{redistest.FreeAddr(t), redistest.FreeAddr(t)}
		relays[name] = servicetest.StartRelay(t, w.listen[name]...).Addr
	}
	for _, from := range w.names {
		var list []string
		for _, to := range w.names {
			if to == from {
				list = append(list, to)
				continue
			}
			p := startProxyTo(t, relays[to])
			w.proxies[[2]string{from, to}] = p
			list = append(list, to+"="+p.Addr)
		}
		pair := ca.Issue(t, "spiffe://example.org/region/"+from)
		w.rules[from] = servicetest.RulesOf(t, rules)
		w.redis[from] = redistest.Start(t)
		w.env[from] = map[string]string{
			"REDIS_URL": w.redis[from].Addr, "RATELIMITD_REGION": from, "RATELIMITD_REGIONS": strings.Join(list, ","),
			"RATELIMITD_REGIONS_TLS_CERT": put(from+".crt", pair.Cert), "RATELIMITD_REGIONS_TLS_KEY": put(from+".key", pair.Key),
			"RATELIMITD_REGIONS_TLS_CACERT": put("ca.crt", ca.PEM),
		}
	}
	w.mend()
	for _, name := range w.names {
		for i := range 2 {
			w.start(name, i)
		}
	}
	for _, name := range w.names {
		for i := range 2 {
			redistest.Eventually(t, "an answer in region "+name, func(context.Context) error { return w.ask(name, i, "home", "warm", patience) })
		}
	}
	return w
}

// start starts a replica.
func (w *world) start(name string, i int) {
	w.t.Helper()
	p := startProcess(w.t, w.env[name], "serve", "--rules", w.rules[name], "--regions-listen", w.listen[name][i])
	w.mu.Lock()
	defer w.mu.Unlock()
	both := w.replicas[name]
	both[i] = replica{p, ratelimitv3.NewRateLimitServiceClient(servicetest.Dial(w.t, p.GRPC))}
	w.replicas[name] = both
}

// mend removes all faults. Regions are still far from each other.
func (w *world) mend() {
	w.t.Helper()
	for _, p := range w.proxies {
		p.Mend(w.t)
		p.add(w.t, "latency", "upstream", map[string]int64{"latency": away.Milliseconds() / 2})
		p.add(w.t, "latency", "downstream", map[string]int64{"latency": away.Milliseconds() / 2})
	}
}

// cut drops all traffic to and from a region.
func (w *world) cut(name string) {
	w.t.Helper()
	for way, p := range w.proxies {
		if way[0] == name || way[1] == name {
			p.Drop(w.t)
		}
	}
}

// errDenied is a request that did not pass.
var errDenied = errors.New("denied")

// ask sends a request to a replica, and returns nil if it passes.
func (w *world) ask(name string, i int, key, value string, within time.Duration) error {
	w.mu.Lock()
	client := w.replicas[name][i].client
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	answer, err := client.ShouldRateLimit(ctx, servicetest.Ask("d", key, value))
	switch {
	case err != nil:
		return err
	case answer.GetOverallCode() != ratelimitv3.RateLimitResponse_OK:
		return errDenied
	default:
		return nil
	}
}

// counts are the results of a load's requests.
type counts struct{ passed, denied, failed atomic.Int64 }

// load sends requests to all replicas, one after the other to each, until do returns. It returns their results.
func (w *world) load(key, value string, within time.Duration, do func()) *counts {
	var c counts
	var callers sync.WaitGroup
	done := make(chan struct{})
	for _, name := range w.names {
		for i := range 2 {
			callers.Go(func() {
				pace := time.NewTicker(4 * time.Millisecond)
				defer pace.Stop()
				for {
					select {
					case <-done:
						return
					case <-pace.C:
					}
					switch err := w.ask(name, i, key, value, within); {
					case err == nil:
						c.passed.Add(1)
					case errors.Is(err, errDenied):
						c.denied.Add(1)
					default:
						c.failed.Add(1)
					}
				}
			})
		}
	}
	do()
	close(done)
	callers.Wait()
	return &c
}

// while returns a function that waits for this time.
func (w *world) while(d time.Duration) func() {
	return func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.t.Context().Done():
		}
	}
}

// Three regions of real processes, 80 ms apart, never exceed the limit, no matter which failure hits one of them,
// except for a home that loses its data. When all regions are whole again, all of the limit can be used.
func TestRegions(t *testing.T) {
	t.Parallel()
	w := startWorld(t, rulesOfRegions)
	times := 1
	if os.Getenv("RATELIMITD_SOAK") != "" {
		times = 10
	}
	for _, c := range []struct {
		name string
		most int64 // the most requests that may pass in all regions together
		do   func()
	}{
		{"nothing", limitOfRegions, w.while(2 * time.Second)},
		{"a region is cut off", limitOfRegions, func() {
			w.while(100 * time.Millisecond)()
			w.cut("ap")
			w.while(2 * time.Second)()
			w.mend()
		}},
		{"the home is cut off", limitOfRegions, func() {
			w.while(100 * time.Millisecond)()
			w.cut("eu")
			w.while(2 * time.Second)()
			w.mend()
		}},
		{"the home's Redis is flushed", 2 * limitOfRegions, func() {
			w.while(500 * time.Millisecond)()
			if err := w.redis["eu"].Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Error(err)
			}
			w.while(2 * time.Second)()
		}},
		{"another region's Redis is flushed", limitOfRegions, func() {
			w.while(500 * time.Millisecond)()
			if err := w.redis["us"].Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Error(err)
			}
			w.while(time.Second)()
		}},
		{"all replicas are restarted", limitOfRegions, func() {
			for _, name := range w.names {
				for i := range 2 {
					w.replicas[name][i].Stop(t)
					w.start(name, i)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := range times {
				value := fmt.Sprint(c.name, n)
				began := time.Now()
				got := w.load("home", value, 500*time.Millisecond, c.do)
				passed, lost := got.passed.Load(), got.failed.Load() // a request without an answer may have counted
				t.Logf("%d passed, %d denied, %d without an answer in %v", passed, got.denied.Load(), lost, time.Since(began).Round(time.Millisecond))
				redistest.Eventually(t, "the limit is used up", func(context.Context) error {
					again := w.load("home", value, 500*time.Millisecond, w.while(300*time.Millisecond))
					passed, lost = passed+again.passed.Load(), lost+again.failed.Load()
					if again.passed.Load() > 0 || again.denied.Load() == 0 {
						return fmt.Errorf("%d more have passed, %d were denied", again.passed.Load(), again.denied.Load())
					}
					return nil
				})
				if passed > c.most || passed+lost < limitOfRegions {
					t.Errorf("%d passed and %d had no answer: the limit is %d", passed, lost, limitOfRegions)
				}
			}
		})
	}
}

// A replica of the home has stopped, but keeps its connections. That costs the other regions a second or two; then the
// other replica answers.
func TestHomeReplicaHangs(t *testing.T) {
	t.Parallel()
	w := startWorld(t, rulesOfRegions)
	w.replicas["eu"][0].Signal(t, syscall.SIGSTOP)
	t.Cleanup(func() { w.replicas["eu"][0].Signal(t, syscall.SIGCONT) })
	for _, name := range []string{"us", "ap"} {
		for i := range 2 {
			redistest.Eventually(t, "answers in region "+name, func(context.Context) error {
				for n := range 20 { // one after the other: connections to both replicas of the home are tried in turn
					if err := w.ask(name, i, "home", fmt.Sprint("hang", name, i, n), patience); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
}

// A limit that is used up denies immediately in every region, even for clients that cannot wait for a trip.
func TestUsedUpFarFromHome(t *testing.T) {
	t.Parallel()
	w := startWorld(t, rulesOfRegions)
	w.load("home", "used", patience, w.while(time.Second))
	redistest.Eventually(t, "every replica denies", func(context.Context) error {
		for _, name := range w.names {
			for i := range 2 {
				if err := w.ask(name, i, "home", "used", patience); !errors.Is(err, errDenied) {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return nil
	})
	got := w.load("home", "used", away*3/4, w.while(3*time.Second))
	t.Logf("%d denied, %d without an answer", got.denied.Load(), got.failed.Load())
	if got.passed.Load() > 0 || got.failed.Load() > got.denied.Load()/20 {
		t.Errorf("%d passed, %d denied, %d without an answer within %s", got.passed.Load(), got.denied.Load(), got.failed.Load(), away*3/4)
	}
}
