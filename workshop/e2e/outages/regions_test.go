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
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// away is a round trip between two regions.
const away = 80 * time.Millisecond

// limitOfRegions is what each counter of the rules below admits.
const limitOfRegions = 1200

const rulesOfRegions = `
domain: d
on_error: deny
descriptors:
  - key: escrow
    rate_limit: {unit: day, requests_per_unit: 1200, regions: {mode: escrow, home: eu}}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 1200, regions: {mode: home, home: eu}}
`

// world is three regions with two replicas and a Redis each. Between two regions is a proxy for each direction of questions.
type world struct {
	t       *testing.T
	names   []string
	rules   map[string]string // directory of each region
	redis   map[string]*redistest.Server
	env     map[string]map[string]string
	proxies map[[2]string]*proxy // from, to

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
		env: make(map[string]map[string]string), proxies: make(map[[2]string]*proxy), replicas: make(map[string][2]replica),
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
	ports := make(map[string]string)
	for _, name := range w.names {
		ports[name] = redistest.FreeAddr(t)
	}
	for _, from := range w.names {
		var list []string
		for _, to := range w.names {
			if to == from {
				list = append(list, to)
				continue
			}
			p := startProxyTo(t, ports[to])
			w.proxies[[2]string{from, to}] = p
			list = append(list, to+"="+p.Addr)
		}
		pair := ca.Issue(t, "spiffe://example.org/region/"+from)
		w.rules[from] = servicetest.RulesOf(t, rules)
		w.redis[from] = redistest.Start(t)
		host, port, _ := strings.Cut(ports[from], ":")
		w.env[from] = map[string]string{
			"REDIS_URL": w.redis[from].Addr, "RATELIMITD_REGION": from, "RATELIMITD_REGIONS": strings.Join(list, ","), "RATELIMITD_REGIONS_EPOCH": "1",
			"RATELIMITD_REGIONS_HOST": host, "RATELIMITD_REGIONS_PORT": port, "RATELIMITD_REUSE_PORT": "true", // both replicas answer on one address
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
	p := startProcess(w.t, w.env[name], "serve", "--rules", w.rules[name])
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

// cut makes the network lose everything from and to a region.
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

// counts are what became of the requests of a load.
type counts struct{ passed, denied, failed atomic.Int64 }

// load sends requests to all replicas, one after the other to each, until do returns. It returns what became of them.
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

// for a while.
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

// rest is within which time what a cut region held is free again: two lives of a grant.
const rest = 60 * time.Second

// Three regions of real processes, 80 ms apart, never admit more than the limit, whatever happens to one of them, and all of it is used
// when they are whole again.
func TestRegions(t *testing.T) {
	t.Parallel()
	w := startWorld(t, rulesOfRegions)
	times := 1
	if os.Getenv("RATELIMITD_SOAK") != "" {
		times = 10
	}
	for _, c := range []struct {
		name   string
		least  int64 // how much of the limit can be used in all: what a flushed Redis held, and what lost answers had taken, cannot
		modes  []string
		within time.Duration // the callers' deadline
		do     func()
	}{
		{"nothing", limitOfRegions, []string{"escrow", "home"}, 500 * time.Millisecond, w.while(2 * time.Second)},
		{"nothing, and callers wait for 20 ms", limitOfRegions, []string{"escrow"}, 20 * time.Millisecond, w.while(3 * time.Second)},
		{"a region is cut off", limitOfRegions * 99 / 100, []string{"escrow"}, 500 * time.Millisecond, func() {
			w.while(100 * time.Millisecond)()
			w.cut("ap")
			w.while(2 * time.Second)()
			w.mend()
		}},
		{"the home is cut off", limitOfRegions * 99 / 100, []string{"escrow", "home"}, 500 * time.Millisecond, func() {
			w.while(100 * time.Millisecond)()
			w.cut("eu")
			w.while(2 * time.Second)()
			w.mend()
		}},
		{"a region's Redis is flushed", limitOfRegions * 3 / 4, []string{"escrow"}, 500 * time.Millisecond, func() {
			w.while(200 * time.Millisecond)()
			if err := w.redis["us"].Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Error(err)
			}
			w.while(2 * time.Second)()
		}},
		{"all replicas are restarted", limitOfRegions * 3 / 4, []string{"escrow", "home"}, 500 * time.Millisecond, func() {
			for _, name := range w.names {
				for i := range 2 {
					w.replicas[name][i].Stop(t)
					w.start(name, i)
				}
			}
		}},
	} {
		for _, mode := range c.modes {
			t.Run(c.name+", "+mode, func(t *testing.T) {
				for n := range times {
					value := fmt.Sprint(c.name, n)
					began := time.Now()
					got := w.load(mode, value, c.within, c.do)
					during, least := got.passed.Load(), c.least-got.failed.Load() // a request without an answer may have counted
					t.Logf("%d passed, %d denied, %d without an answer in %v", during, got.denied.Load(), got.failed.Load(), time.Since(began).Round(time.Millisecond))
					if during == 0 {
						t.Error("nothing passed")
					}
					total, healed := during, time.Now()
					for more := int64(1); total < limitOfRegions && (more > 0 || total < least) && time.Since(healed) < rest; total += more {
						again := w.load(mode, value, 500*time.Millisecond, w.while(500*time.Millisecond))
						more, least = again.passed.Load(), least-again.failed.Load()
					}
					if total > limitOfRegions || total < least {
						t.Errorf("%d passed, the limit is %d, and at least %d can be used", total, limitOfRegions, least)
					}
					t.Logf("%d passed in all, %v after the end", total, time.Since(healed).Round(100*time.Millisecond))
				}
			})
		}
	}
}
