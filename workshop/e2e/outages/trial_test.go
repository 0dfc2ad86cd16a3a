package outages

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// pace is how long and how hard a trial is.
type pace struct {
	timeout time.Duration // the service's timeout for Redis
	outage  time.Duration // length of an outage
	times   int           // number of outages
	rate    int           // calls per second
	factor  int           // multiplies the limits
}

const asSoak = "RATELIMITD_SOAK"

var (
	shortPace = pace{timeout: 100 * time.Millisecond, outage: 1200 * time.Millisecond, times: 1, rate: 300, factor: 1}
	longPace  = pace{timeout: 15 * time.Millisecond, outage: 5 * time.Second, times: 2, rate: 500, factor: 20}
)

// topology is a Redis setup and the service's environment for it. Fields that a setup does not use are nil.
type topology struct {
	env     map[string]string
	single  *redistest.Server
	proxy   *proxy // the proxy in front of single
	watched *redistest.Watched
	cluster *redistest.Cluster
}

func onOne(t *testing.T) topology {
	s := redistest.Start(t)
	return topology{env: map[string]string{"REDIS_URL": s.Addr}, single: s}
}

// onNarrow starts a Redis with a tiny accept backlog. While it hangs, it soon accepts no connections, as if its machine
// were gone.
func onNarrow(t *testing.T) topology {
	s := redistest.Start(t, "--tcp-backlog", "1")
	return topology{env: map[string]string{"REDIS_URL": s.Addr}, single: s}
}

func onProxy(t *testing.T) topology {
	s := redistest.Start(t)
	p := startProxy(t, s)
	return topology{env: map[string]string{"REDIS_URL": p.Addr}, single: s, proxy: p}
}

func onSentinel(t *testing.T) topology {
	w := redistest.StartWatched(t, redistest.Setup{Args: []string{"--tcp-backlog", "1"}})
	return topology{env: map[string]string{"REDIS_URL": w.URL(), "REDIS_TYPE": "SENTINEL"}, watched: w}
}

func onCluster(t *testing.T) topology {
	c := redistest.StartCluster(t, redistest.Setup{})
	return topology{env: map[string]string{"REDIS_URL": strings.Join(c.Addrs(), ","), "REDIS_TYPE": "CLUSTER"}, cluster: c}
}

// trial is a service of several processes under load while its Redis fails.
type trial struct {
	topology
	pace

	t         *testing.T
	processes []*servicetest.Process
	load      *load
	env       map[string]string
	rules     string

	felt    bool          // every on_error must answer some calls
	wasBack time.Duration // the longest time until all calls were served again
	forgot  bool
}

// startTrial starts two processes and returns when both serve every counter.
func startTrial(t *testing.T, c *chaos, p pace) *trial {
	t.Helper()
	s := &trial{topology: c.on(t), pace: p, felt: c.felt, t: t, rules: servicetest.RulesOf(t, chaosRules(p.factor)...)}
	if c.exact {
		s.timeout = 5 * time.Second
	}
	s.env = map[string]string{"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "REDIS_OP_TIMEOUT": s.timeout.String()}
	maps.Copy(s.env, s.topology.env)
	maps.Copy(s.env, c.env)
	for range 2 {
		s.processes = append(s.processes, startProcess(t, s.env, "--rules", s.rules))
	}
	for _, p := range s.processes {
		p.AwaitReplicas(t, 2)
	}
	s.load = newLoad(t, s.timeout, s.factor, s.processes...)
	s.load.served("at the start")
	return s
}

// hold lets the load continue for a while. If the failure must be felt, it waits until every on_error has answered,
// which takes longer on a busy machine. Then health must be green.
func (s *trial) hold(d time.Duration) {
	s.t.Helper()
	<-time.After(d)
	for end := time.Now().Add(patience); s.felt && !s.load.sawAll() && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
	}
	for i, p := range s.processes {
		if s.load.away[i].Load() {
			continue
		}
		if code, body := servicetest.Get(s.t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusOK {
			s.t.Errorf("health while Redis is sick: %d %s", code, body)
		}
	}
}

// back waits until both processes serve every counter. Call it when Redis works again.
func (s *trial) back() {
	s.t.Helper()
	s.wasBack = max(s.wasBack, s.load.served("after Redis was back"))
}

// recovery is the longest time from Redis' return until the service is back.
const recovery = 2 * time.Second

// forget reads the counts that Redis still has, from the servers that hold the counters from now on. Hits that were
// allowed before and are missing there may be allowed again. It waits until no call is in flight.
func (s *trial) forget(servers ...*redistest.Server) {
	s.t.Helper()
	s.forgot = true
	s.load.still(func() {
		known := servicetest.Counts(s.t, "", servers...)
		for _, c := range s.load.counters {
			c.most = c.admitted.Load() + c.slack + c.limit - min(known[c.value], c.limit)
		}
	})
}

// occupy opens connections to a hanging server until it accepts no more, and returns a function that closes them.
func (s *trial) occupy(server *redistest.Server) (leave func()) {
	s.t.Helper()
	var held []net.Conn
	for range 100 {
		c, err := net.DialTimeout("tcp", server.Addr, 200*time.Millisecond)
		if err != nil {
			return func() {
				for _, c := range held {
					c.Close()
				}
			}
		}
		held = append(held, c)
	}
	s.t.Fatal("a server that hangs takes connections without end")
	return nil
}

// servers returns the running servers that may have counters.
func (s *trial) servers(without ...*redistest.Server) []*redistest.Server {
	var all []*redistest.Server
	switch {
	case s.cluster != nil:
		all = s.cluster.Nodes
	case s.watched != nil:
		all = s.watched.Servers
	default:
		all = []*redistest.Server{s.single}
	}
	return slices.DeleteFunc(slices.Clone(all), func(r *redistest.Server) bool { return slices.Contains(without, r) })
}

// key returns the key of a counter in Redis.
func (s *trial) key(value string) string {
	s.t.Helper()
	for _, server := range s.servers() {
		for _, key := range server.Client(s.t).Keys(s.t.Context(), "*").Val() {
			if strings.Contains(key, "="+value+"|") {
				return key
			}
		}
	}
	s.t.Fatalf("no server has a counter for %s", value)
	return ""
}

// stopProcess kills one process. Calls in flight there get no answer.
func (s *trial) stopProcess(i int) {
	s.t.Helper()
	s.load.away[i].Store(true)
	s.processes[i].Kill(s.t)
}

// startProcess starts the process again at the same address.
func (s *trial) startProcess(i int) {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.processes[i].GRPC)
	if err != nil {
		s.t.Fatal(err)
	}
	env := maps.Clone(s.env)
	env["GRPC_PORT"] = port
	s.processes[i] = startProcess(s.t, env, "--rules", s.rules)
	for _, c := range s.load.counters {
		c.local[i].Store(0) // its own counters ended with it
	}
	s.load.served("after a process was back") // the clients have to reconnect first
	s.load.away[i].Store(false)
}

// result is a line of the report.
type result struct {
	name  string
	pace  pace
	tally tally
	back  time.Duration
}

// try runs the failure under load, then uses up all limits, and checks the ledger.
func (c *chaos) try(t *testing.T, p pace) result {
	s := startTrial(t, c, p)
	stop := s.load.start(s.rate)
	s.load.setSick(true)
	for range s.times {
		c.happens(s)
	}
	s.load.setSick(false)
	stop()
	tally := s.load.tally
	// A call that waits for Redis may take as long as one that does not, plus a bounded time. A machine busy with other
	// work slows both down.
	slow := time.Duration(tally.bare.Max())*time.Microsecond + tally.stall
	if tally.longest > 10*s.timeout+3*slow {
		t.Errorf("a call for %s took %s, with a timeout of %s; without Redis, and while this machine had no turn, it would have been %s", tally.of, tally.longest, s.timeout, slow)
	}
	if c.mostly && slow < s.timeout/10 && tally.served*10 < tally.calls*9 {
		t.Errorf("Redis answered %d of %d calls, want nine of ten", tally.served, tally.calls)
	}
	if s.wasBack > recovery+10*slow {
		t.Errorf("the service was there again %s after Redis was, want %s", s.wasBack, recovery)
	}
	if n := s.load.complaints.Load(); n > 0 {
		t.Errorf("%d complaints of callers", n)
	}
	if c.felt {
		for _, how := range onErrors {
			if tally.seen[how] == 0 {
				t.Errorf("no call was answered by on_error: %s", how)
			}
		}
	} else if c.exact && slow < s.timeout/2 && len(tally.seen) > 0 {
		// on a machine that is too busy to run Redis, the service cannot answer in time
		t.Errorf("calls were not answered by Redis: %v; the last error is %v", tally.seen, s.load.lastError.Load())
	}
	t.Logf("the longest of %d calls took %s, for %s; Redis answered %d, on_error %v; served again within %s",
		tally.calls, tally.longest, tally.of, tally.served, tally.seen, s.wasBack)
	s.load.exhaust()
	s.audit()
	return result{name: c.name, pace: s.pace, tally: tally, back: s.wasBack}
}

// audit checks that no counter allowed more hits than its limit, or fewer than expected.
func (s *trial) audit() {
	s.t.Helper()
	var known map[string]int64
	if !s.forgot {
		known = servicetest.Counts(s.t, "", s.servers()...)
	}
	for _, c := range s.load.counters {
		admitted, unknown := c.admitted.Load(), c.unknown.Load()
		if admitted > c.most {
			s.t.Errorf("%s: %d admitted, but the limit is %d, and with what Redis forgot %d", c.value, admitted, c.limit, c.most)
		}
		if least := c.most - 2*c.slack - unknown; admitted < least {
			s.t.Errorf("%s: %d admitted of %d, though only %d calls got no answer", c.value, admitted, c.most, unknown)
		}
		for i := range c.local {
			if n := c.local[i].Load(); n > c.limit/int64(len(c.local)) {
				s.t.Errorf("%s: process %d admitted %d on its own, of its share of %d", c.value, i, n, c.limit/int64(len(c.local)))
			}
		}
		if n := known[c.wide]; known != nil && c.wide != "" && (n < admitted || n > admitted+unknown) {
			s.t.Errorf("%s has %d used, but %d calls took from it, and %d more got no answer", c.wide, n, admitted, unknown)
		}
	}
}

// reportTrial writes the results as the table in docs/do/redis-failures.md.
func reportTrial(t *testing.T, results []result) {
	t.Helper()
	ms := func(us int64) string { return fmt.Sprintf("%.1f", float64(us)/1000) }
	var b strings.Builder
	fmt.Fprintln(&b, "| what happens | timeout | calls | answered by Redis | waited to the end | p99 past it, ms | longest, ms | served again after, ms | without Redis: p99, longest, ms | stall, ms |")
	fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range results {
		past, longest := "-", "-"
		if r.tally.past.TotalCount() > 0 {
			past, longest = ms(r.tally.past.ValueAtQuantile(99)), ms(r.tally.past.Max())
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %s | %d | %s, %s | %d |\n", r.name, r.pace.timeout, r.tally.calls, r.tally.served,
			r.tally.past.TotalCount(), past, longest, r.back.Milliseconds(),
			ms(r.tally.bare.ValueAtQuantile(99)), ms(r.tally.bare.Max()), r.tally.stall.Milliseconds())
	}
	t.Logf("\n%s", b.String())
}

// soaking skips long tests unless they are requested.
func soaking(t *testing.T) {
	t.Helper()
	if os.Getenv(asSoak) == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes minutes")
	}
}
