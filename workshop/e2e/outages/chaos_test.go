package outages

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// chaos is a failure of Redis, or of the network to it, while the service runs.
type chaos struct {
	name string
	on   func(*testing.T) topology
	env  map[string]string // more environment of the service, besides the address of Redis
	// returns at the end of the failure; records in the trial when Redis is back and which counters it lost
	happens func(*trial)

	long  time.Duration // duration of the outage in the long form, if it differs from the usual one
	felt  bool          // Redis does not answer some calls
	exact bool          // Redis answers all calls. This is not checked if the machine stalls for half of the timeout
	// Redis answers most calls. This is not checked if the machine stalls for a tenth of the timeout.
	mostly bool
}

var chaoses = []chaos{
	{name: "Redis is killed and starts empty", on: onOne, felt: true, happens: func(s *trial) {
		s.single.Kill(s.t)
		s.hold(s.outage)
		s.load.still(func() {}) // every hit that the old server allowed is in the ledger
		s.single.Restart(s.t)
		s.forgetAll()
		s.back()
	}},
	{name: "Redis hangs (SIGSTOP)", on: onOne, felt: true, long: 30 * time.Second, happens: func(s *trial) {
		s.single.Pause(s.t)
		s.hold(s.outage)
		s.single.Continue(s.t)
		s.back()
	}},
	{name: "Redis hangs and accepts no connections", on: onNarrow, felt: true, long: 30 * time.Second, happens: func(s *trial) {
		s.single.Pause(s.t)
		leave := s.occupy(s.single)
		s.hold(s.outage)
		leave()
		s.single.Continue(s.t)
		s.back()
	}},
	{name: "responses arrive too late", on: onProxy, felt: true, happens: networkFault(func(s *trial) { s.proxy.Delay(s.t, 3*s.timeout) })},
	{name: "responses arrive just in time", on: onProxy, mostly: true, happens: networkFault(func(s *trial) { s.proxy.Delay(s.t, s.timeout*7/10) })},
	{name: "the network loses everything", on: onProxy, felt: true, happens: networkFault(func(s *trial) { s.proxy.Drop(s.t) })},
	{name: "the network loses responses", on: onProxy, felt: true, happens: networkFault(func(s *trial) { s.proxy.Swallow(s.t) })},
	{name: "connections are reset", on: onProxy, felt: true, happens: networkFault(func(s *trial) { s.proxy.Cut(s.t) })},
	{name: "connections are cut mid-response", on: onProxy, happens: networkFault(func(s *trial) { s.proxy.CutAfter(s.t, 301) })},
	{name: "connections are refused", on: onProxy, felt: true, happens: func(s *trial) {
		s.proxy.Close(s.t)
		s.hold(s.outage)
		s.proxy.Open(s.t)
		s.back()
	}},
	{name: "responses arrive in small pieces", on: onProxy, exact: true, happens: networkFault(func(s *trial) { s.proxy.Slice(s.t, 8, 200*time.Microsecond) })},
	{name: "one connection and slow responses", on: onProxy, env: map[string]string{"REDIS_POOL_SIZE": "1"}, happens: networkFault(func(s *trial) { s.proxy.Delay(s.t, s.timeout*4/10) })},
	{name: "scripts are flushed all the time", on: onOne, exact: true, happens: func(s *trial) {
		client := s.single.Client(s.t)
		many := make(chan struct{})
		n := 0
		flushes := s.every(3*time.Millisecond, func(ctx context.Context) error {
			err := client.ScriptFlush(ctx).Err()
			if err == nil {
				if n++; n == 20 {
					close(many)
				}
			}
			return err
		})
		s.hold(s.outage)
		select {
		case <-many: // a busy machine takes longer
		case <-time.After(patience):
		}
		if n := flushes(); n < 20 {
			s.t.Errorf("scripts were flushed %d times only", n)
		}
		s.back()
	}},
	{name: "Redis' memory is full", on: onOne, felt: true, happens: func(s *trial) {
		// A client writes more than the server may hold from then on, and deletes it later.
		c := s.single.Client(s.t)
		const size = 16 << 20
		try := func(what string, err error) {
			s.t.Helper()
			if err != nil {
				s.t.Fatalf("%s: %v", what, err)
			}
		}
		try("write the filler", c.Set(s.t.Context(), "filler", strings.Repeat("0", size), 0).Err())
		try("reject evictions", c.ConfigSet(s.t.Context(), "maxmemory-policy", "noeviction").Err())
		try("bound the memory", c.ConfigSet(s.t.Context(), "maxmemory", strconv.Itoa(size)).Err())
		s.hold(s.outage)
		try("delete the filler", c.Del(s.t.Context(), "filler").Err())
		s.back()
	}},
	{name: "faults that a seed draws", on: onProxy, happens: drawn},
	{name: "a replica of ratelimitd is killed", on: onOne, happens: func(s *trial) {
		s.stopProcess(1)
		s.hold(s.outage / 2)
		s.startProcess(1)
		s.back()
	}},
	{name: "Sentinel: planned failover", on: onSentinel, happens: func(s *trial) {
		before := s.load.admitted()
		s.hold(300 * time.Millisecond) // a replica may lag by this much
		next := s.watched.Failover(s.t)
		s.back()
		s.forgetSince(before, next)
		if s.times > 1 {
			s.watched.Await(s.t)
		}
	}},
	{name: "Sentinel: the primary is killed", on: onSentinel, felt: true, happens: func(s *trial) {
		old := s.watched.Primary(s.t)
		old.Kill(s.t)
		s.forget(s.servers(old)...)
		s.watched.AwaitOther(s.t, old)
		s.back()
		s.restore(old)
	}},
	{name: "Sentinel: the primary hangs and accepts no connections", on: onSentinel, felt: true, happens: func(s *trial) {
		old := s.watched.Primary(s.t)
		old.Pause(s.t)
		leave := s.occupy(old)
		s.forget(s.servers(old)...)
		s.watched.AwaitOther(s.t, old)
		s.back()
		leave()
		old.Continue(s.t)
		if s.times > 1 {
			s.watched.Await(s.t)
		}
	}},
	{name: "cluster: planned failover", on: onCluster, happens: func(s *trial) {
		s.cluster.Failover(s.t, s.replica("hot-0"))
		s.back()
	}},
	{name: "cluster: a primary is killed", on: onCluster, felt: true, happens: func(s *trial) {
		old := s.cluster.Primary(s.t, s.cluster.Slot(s.t, s.key("hot-0")))
		old.Kill(s.t)
		s.forget(s.servers(old)...)
		s.cluster.Await(s.t)
		s.back()
		s.restore(old)
	}},
	{name: "cluster: a primary hangs (SIGSTOP)", on: onCluster, felt: true, happens: func(s *trial) {
		old := s.cluster.Primary(s.t, s.cluster.Slot(s.t, s.key("hot-0")))
		old.Pause(s.t)
		s.forget(s.servers(old)...)
		s.cluster.Await(s.t)
		s.back()
		old.Continue(s.t)
		s.cluster.Await(s.t)
		s.back()
	}},
	{name: "cluster: slots move", on: onCluster, exact: true, happens: func(s *trial) {
		for _, value := range []string{"hot-0", "leased-0", "error-0", "narrow-0"} {
			s.moveSlot(value)
		}
		s.back()
	}},
	{name: "cluster: a slot with all counters moves", on: onCluster, env: map[string]string{"CACHE_KEY_PREFIX": "{all}"}, exact: true, happens: func(s *trial) {
		s.moveSlot("hot-0")
		s.moveSlot("hot-0")
		s.back()
	}},
}

// drawn is a series of faults that a seed selects: of the network, of Redis and of a replica. CHAOS_SEED sets the
// seed, and make soak tries new ones. The load between the faults differs from run to run.
func drawn(s *trial) {
	seed, err := strconv.ParseUint(os.Getenv("CHAOS_SEED"), 10, 64)
	switch {
	case err == nil:
	case os.Getenv("RATELIMITD_SOAK") != "":
		seed = rand.Uint64()
	default:
		seed = 1
	}
	s.t.Logf("CHAOS_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	faults := []struct {
		name       string
		begin, end func()
	}{
		{"delay", func() { s.proxy.Delay(s.t, time.Duration(r.Int64N(int64(3*s.timeout)))) }, func() { s.proxy.Mend(s.t) }},
		{"drop", func() { s.proxy.Drop(s.t) }, func() { s.proxy.Mend(s.t) }},
		{"swallow", func() { s.proxy.Swallow(s.t) }, func() { s.proxy.Mend(s.t) }},
		{"cut", func() { s.proxy.Cut(s.t) }, func() { s.proxy.Mend(s.t) }},
		{"cut after", func() { s.proxy.CutAfter(s.t, 1+r.Int64N(2000)) }, func() { s.proxy.Mend(s.t) }},
		{"slice", func() { s.proxy.Slice(s.t, 1+r.IntN(64), time.Duration(r.Int64N(int64(time.Millisecond)))) }, func() { s.proxy.Mend(s.t) }},
		{"reject", func() { s.proxy.Close(s.t) }, func() { s.proxy.Open(s.t) }},
		{"pause", func() { s.single.Pause(s.t) }, func() { s.single.Continue(s.t) }},
		{"kill a replica", func() { s.stopProcess(1) }, func() { s.startProcess(1) }},
	}
	for range 8 {
		f := faults[r.IntN(len(faults))]
		d := time.Duration(r.Int64N(int64(s.outage) / 2))
		s.t.Logf("%s for %v", f.name, d)
		f.begin()
		s.hold(d)
		f.end()
		if r.IntN(2) == 0 { // else the next fault starts immediately
			s.back()
		}
	}
	s.back()
}

// networkFault is a fault of the network between the service and Redis that lasts as long as the outage.
func networkFault(fault func(*trial)) func(*trial) {
	return func(s *trial) {
		fault(s)
		s.hold(s.outage)
		s.proxy.Mend(s.t)
		s.back()
	}
}

// forgetAll records that Redis has lost all counters.
func (s *trial) forgetAll() {
	s.t.Helper()
	s.forget()
}

// forgetSince records that Redis has only this server's counters. It checks that no hit from before is lost.
func (s *trial) forgetSince(before map[*counter]int64, server *redistest.Server) {
	s.t.Helper()
	most := make(map[*counter]int64)
	for _, c := range s.load.counters {
		most[c] = c.most
	}
	s.forget(server)
	for c, n := range before {
		if forgot, since := c.most-most[c]-c.slack, c.admitted.Load()-n; forgot > since {
			s.t.Errorf("%s: Redis forgot %d hits, but %d only were admitted since just before the failover", c.value, forgot, since)
		}
	}
}

// restore restarts a killed server, if the trial has more rounds, and returns when the other servers have accepted it.
func (s *trial) restore(r *redistest.Server) {
	s.t.Helper()
	if s.times == 1 {
		return
	}
	r.Restart(s.t)
	if s.cluster != nil {
		s.cluster.Await(s.t)
		return
	}
	s.watched.Await(s.t)
}

// replica returns a replica of the node that has a counter.
func (s *trial) replica(value string) *redistest.Server {
	s.t.Helper()
	slot := s.cluster.Slot(s.t, s.key(value))
	for start := time.Now(); time.Since(start) < patience; {
		s.cluster.Await(s.t)
		if all := s.cluster.Replicas(s.t, s.cluster.Primary(s.t, slot)); len(all) > 0 {
			return all[0]
		}
	}
	s.t.Fatalf("the node that has %s got no replica", value)
	return nil
}

// moveSlot moves the slot of a counter to another primary while the load continues.
func (s *trial) moveSlot(value string) {
	s.t.Helper()
	slot := s.cluster.Slot(s.t, s.key(value))
	from := s.cluster.Primary(s.t, slot)
	to := s.cluster.Nodes[0]
	if from == to {
		to = s.cluster.Nodes[1]
	}
	step := s.outage / 8
	m := s.cluster.Migrate(s.t, slot, to)
	s.hold(step) // new keys are created on the target
	m.MoveKeys(s.t, 1)
	s.hold(step) // both nodes have keys of the slot
	m.Finish(s.t)
	s.hold(step)
	if s.cluster.Primary(s.t, slot) != to {
		s.t.Errorf("slot %d of %s did not move", slot, value)
	}
}

// every repeats do until the returned function is called, which returns how often it succeeded.
func (s *trial) every(pause time.Duration, do func(context.Context) error) (stop func() int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	worked := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for ctx.Err() == nil {
			if do(ctx) == nil {
				worked++
			}
			<-tick.C
		}
	})
	return func() int { cancel(); wg.Wait(); return worked }
}

// TestChaos runs each failure briefly against a service of two processes.
func TestChaos(t *testing.T) {
	var mu sync.Mutex
	var results []result
	t.Cleanup(func() { reportTrial(t, results) })
	for _, c := range chaoses {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it spends most of its time waiting
			r := c.try(t, shortPace)
			mu.Lock()
			defer mu.Unlock()
			results = append(results, r)
		})
	}
}

// TestSoakChaos runs longer, with the service's default timeout.
func TestSoakChaos(t *testing.T) {
	soaking(t)
	var results []result
	for _, c := range chaoses {
		p := longPace
		if c.long > 0 {
			p.outage, p.times = c.long, 1
		}
		t.Run(c.name, func(t *testing.T) { results = append(results, c.try(t, p)) })
	}
	reportTrial(t, results)
}
