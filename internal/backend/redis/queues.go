package redis

import (
	"context"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// queues are the queues of a store: one, or on a cluster one for each node. While a node hangs, its requests would else be part of every
// flush, and the other nodes would have to wait with it.
type queues struct {
	store       *Store
	connections int

	mu     sync.RWMutex
	nodes  map[string]*queue // by address; the empty one is for a node that is not known
	closed bool
}

// maxQueues bounds how many there are, if addresses of nodes change all the time: then nodes share one.
const maxQueues = 256

// of is the queue that a request waits in.
func (s *queues) of(ctx context.Context, r *backend.Request) *queue {
	addr := ""
	if s.store.cluster {
		addr = s.store.addrOf(ctx, r)
	}
	s.mu.RLock()
	q := s.nodes[addr]
	s.mu.RUnlock()
	if q != nil {
		return q
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) >= maxQueues {
		addr = ""
	}
	if q = s.nodes[addr]; q == nil {
		if s.nodes == nil {
			s.nodes = make(map[string]*queue)
		}
		q = newQueue(s.store, s.connections)
		q.closed = s.closed
		s.nodes[addr] = q
	}
	return q
}

// addrOf is the address of the cluster's node that is believed to have a request's counters.
func (s *Store) addrOf(ctx context.Context, r *backend.Request) string {
	m := s.terms(0, true, 0)
	c := calls.Get().(*call)
	key, _ := c.keyOf(&r.Takes[0], &m)
	node, err := s.opts.Client.(*goredis.ClusterClient).MasterForKey(ctx, string(key))
	c.release()
	if err != nil {
		return "" // the flush will find out why
	}
	return node.Options().Addr
}

func (s *queues) close() {
	s.mu.Lock()
	s.closed = true
	var wg sync.WaitGroup
	for _, q := range s.nodes {
		wg.Go(q.close)
	}
	s.mu.Unlock()
	wg.Wait()
}
