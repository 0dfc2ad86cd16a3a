package assigner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/envoymodel"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// world is an assigner on a real limiter, with clients, in virtual time.
type world struct {
	*testing.T
	*assigner.Assigner
	limiter  *limiter.Limiter
	counters *counters
	clients  []*client
	stop     context.CancelFunc
}

// counters are counters in memory that can fail.
type counters struct {
	*memory.Store
	away atomic.Bool
}

// Start implements backend.Store.
func (c *counters) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, c.take(ctx, now, r)
}

func (c *counters) take(ctx context.Context, now time.Time, r *backend.Request) error {
	if c.away.Load() {
		backend.Fail(r.Outcomes)
		return backend.ErrUnavailable
	}
	return backend.Await(ctx, c.Store, now, r)
}

func (c *counters) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	if c.away.Load() {
		return backend.ErrUnavailable
	}
	return c.Store.Peek(ctx, now, r)
}

// client is an Envoy with a single bucket.
type client struct {
	envoymodel.Client
	id     []descriptor.Entry
	stream *assigner.Stream
	stop   context.CancelFunc
	told   chan assigner.Action
	ended  chan struct{}

	reported  time.Time
	abandoned int
}

func limitOf(requests uint64, unit descriptor.Unit, change ...func(*descriptor.Limit)) descriptor.Limit {
	l := descriptor.Limit{Requests: requests, Window: descriptor.Window{Unit: unit}}
	for _, c := range change {
		c(&l)
	}
	if err := l.Compile(); err != nil {
		panic(err)
	}
	return l
}

func node(key string, limits ...descriptor.Limit) descriptor.NodeSpec {
	return descriptor.NodeSpec{Key: key, Rule: &descriptor.Rule{Limits: limits}}
}

func treeOf(t *testing.T, nodes ...descriptor.NodeSpec) *descriptor.Tree {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, o assigner.Options, nodes []descriptor.NodeSpec, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := &counters{Store: memory.New(memory.Options{})}
		l := limiter.New(limiter.Options{Store: store})
		l.Swap(treeOf(t, nodes...), limiter.Settings{})
		o.Limiter = l
		w := &world{T: t, Assigner: assigner.New(o), limiter: l, counters: store}
		var ctx context.Context
		ctx, w.stop = context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Assigner.Run(ctx) }()
		test(w)
		for _, c := range w.clients {
			c.close()
		}
		w.stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// join adds a client with a demand.
func (w *world) join(demand float64, id ...descriptor.Entry) *client {
	c := &client{Client: envoymodel.Client{Demand: demand}, id: id, told: make(chan assigner.Action, 1000)}
	c.connect(w)
	w.clients = append(w.clients, c)
	return c
}

func (c *client) connect(w *world) {
	var ctx context.Context
	ctx, c.stop = context.WithCancel(w.Context())
	c.stream, c.ended, c.reported = w.Open("client"), make(chan struct{}), time.Time{}
	go func() {
		defer close(c.ended)
		for {
			all, err := c.stream.Next(ctx, nil)
			if errors.Is(err, context.Canceled) {
				return
			}
			c.stream.Sent(time.Now())
			for _, a := range all {
				c.told <- a
			}
		}
	}()
}

// reconnect opens another stream. Its first report arrives five seconds after the last one.
func (c *client) reconnect(w *world) {
	reported := c.reported
	c.connect(w)
	c.reported = reported
}

func (c *client) close() {
	c.stop()
	<-c.ended
	c.stream.Close(time.Now())
}

const tick = 50 * time.Millisecond

// pass lets time pass for all clients.
func (w *world) pass(d time.Duration) {
	for range int(d / tick) {
		time.Sleep(tick) //nolint:forbidigo // virtual time
		synctest.Wait()
		for _, c := range w.clients {
			c.step(time.Now())
		}
	}
}

func (c *client) step(now time.Time) {
	for len(c.told) > 0 {
		if a := <-c.told; a.Abandon {
			c.Forget()
			c.abandoned++
			c.reported = time.Time{}
		} else {
			c.Receive(now, a.Assignment)
		}
	}
	c.Step(now, tick)
	switch first := c.reported.IsZero(); {
	case first && c.Allowed+c.Denied == 0:
	case first || now.Sub(c.reported) >= 5*time.Second:
		elapsed := now.Sub(c.reported).Truncate(time.Second)
		if first {
			elapsed = 0
		}
		allowed, denied := c.Report()
		c.reported = now
		c.stream.Report(now, "d", []assigner.Usage{{ID: c.id, Elapsed: elapsed, Allowed: allowed, Denied: denied}})
	}
}

func (w *world) passed() (n float64) {
	for _, c := range w.clients {
		n += c.Passed
	}
	return n
}

// used returns the count of a limit's counter.
func (w *world) used(id ...descriptor.Entry) int64 {
	w.Helper()
	c, err := w.limiter.Peek(w.Context(), time.Now(), "d", &limiter.Descriptor{Entries: id})
	if err != nil || len(c.List) == 0 {
		w.Fatal(c, err)
	}
	return c.List[0].Used
}

func pair(key, value string) descriptor.Entry { return descriptor.Entry{Key: key, Value: value} }

var _ assigner.Limiter = (*limiter.Limiter)(nil)

func (c *client) holds(k quota.Kind) bool { return c.Held.Kind == k }

// next is Next for a stream with actions: it must not wait.
func next(s *assigner.Stream) ([]assigner.Action, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	return s.Next(ctx, nil)
}
