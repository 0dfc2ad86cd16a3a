package assembly

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// replicas is the number of replicas that share the limits.
type replicas struct {
	counted atomic.Int64 // number of replicas found in Redis; 0 until they are counted
}

func (r *replicas) register(o *Options) {
	metric.Register(o.Metrics, metric.Family{
		Name:   "ratelimitd_replicas",
		Help:   "Replicas that share the limits, counted in Redis or assumed.",
		Labels: []string{"source"},
		Levels: func(emit metric.Emit) {
			if counted := r.counted.Load(); counted > 0 {
				emit(float64(counted), "counted")
				return
			}
			emit(1, "assumed")
		},
	})
}

// Join makes this process one of the replicas that share its Redis. Replicas count each other, because leases and
// on_error: local divide limits among them. Changed is called when the number changes. Join sets the options for
// reaching Redis.
func (c *Counters) Join(tasks *Tasks, o fleet.Options) *fleet.Fleet {
	changed := o.Changed
	o.Client, o.Names, o.Prefix, o.Log = c.Shared, c.prefix+redis.ReplicasKey, c.prefix, c.log
	o.Changed = func(n int) {
		c.replicas.counted.Store(int64(n))
		c.Leases.SetReplicas(n)
		changed(n)
	}
	if len(c.Redis) > 0 {
		o.Beat = func(ctx context.Context, name string, lives time.Duration, leaves bool) (int, error) {
			return c.Redis[0].Heartbeat(ctx, o.Names, name, lives, leaves)
		}
	}
	f := fleet.New(o)
	tasks.Add(f.Run)
	return f
}
