package redis

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// queues are the queues of a store: one, and on a cluster one more for each node, so that a node that hangs blocks only
// its own queue.
type queues struct {
	store       *Store
	connections int
	common      *queue // queue of a single server, and of a cluster's requests whose node is unknown

	// queues by address of the node; replaced as a whole, so that finding a queue takes no lock
	nodes atomic.Pointer[map[string]*queue]

	mu     sync.Mutex // held to replace nodes
	closed bool
}

// maxQueues bounds the queues of a cluster whose nodes keep changing their addresses. Further nodes use the common
// queue.
const maxQueues = 256

func (s *queues) init(store *Store, connections int) {
	s.store, s.connections, s.common = store, connections, newQueue(store, connections)
	s.nodes.Store(&map[string]*queue{})
}

// of returns the queue for a request.
func (s *queues) of(ctx context.Context, r *backend.Request) *queue {
	if !s.store.cluster {
		return s.common
	}
	addr := s.store.addrOf(ctx, r)
	if addr == "" {
		return s.common
	}
	if q := (*s.nodes.Load())[addr]; q != nil {
		return q
	}
	return s.ofNode(addr)
}

// ofNode returns the queue of a node, and makes it if necessary.
func (s *queues) ofNode(addr string) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	nodes := *s.nodes.Load()
	if q := nodes[addr]; q != nil {
		return q
	}
	if len(nodes) >= maxQueues {
		return s.common
	}
	q := newQueue(s.store, s.connections)
	q.closed = s.closed
	nodes = maps.Clone(nodes)
	nodes[addr] = q
	s.nodes.Store(&nodes)
	return q
}

// addrOf returns the address of the node that owns a request's counters, as far as this replica has seen the cluster's
// topology, or "".
func (s *Store) addrOf(ctx context.Context, r *backend.Request) string {
	m := s.terms(0, true, 0)
	c := scriptCalls.Get().(*scriptCall)
	key, _ := c.keyOf(&r.Takes[0], &m)
	node, err := s.opts.Client.(*goredis.ClusterClient).MasterForKey(ctx, string(key))
	c.release()
	if err != nil {
		return "" // the flush will return the reason
	}
	return node.Options().Addr
}

func (s *queues) close() {
	s.mu.Lock()
	s.closed = true
	nodes := *s.nodes.Load()
	s.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(s.common.close)
	for _, q := range nodes {
		wg.Go(q.close)
	}
	wg.Wait()
}
