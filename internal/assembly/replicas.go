package assembly

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// replicas is the number of replicas that share the limits, and its source.
type replicas struct {
	set     int          // the number that the operator has set; 0: none
	counted atomic.Int64 // the number of replicas found in Redis; 0: not counted yet
}

func (r *replicas) register(o *Options) {
	r.set = o.Replicas
	metric.Register(o.Metrics, metric.Family{
		Name:   "ratelimitd_replicas",
		Help:   "Replicas that share the limits; source: set (RATELIMITD_REPLICAS), counted (in Redis) or assumed (1, not known yet).",
		Labels: []string{"source"},
		Levels: func(emit metric.Emit) {
			switch counted := r.counted.Load(); {
			case r.set > 0:
				emit(float64(r.set), "set")
			case counted > 0:
				emit(float64(counted), "counted")
			default:
				emit(1, "assumed")
			}
		},
	})
}

// Join makes this process one of those that share its Redis. They count each other, because leases and on_error: local divide limits among
// them. Changed is called with another number, unless the number is set. What Join adds to the options: how to reach Redis.
func (c *Counters) Join(tasks *Tasks, o fleet.Options) *fleet.Fleet {
	changed := o.Changed
	o.Client, o.Names, o.Prefix, o.Log = c.Shared, c.prefix+redis.ReplicasKey, c.prefix, c.log
	o.Changed = func(n int) {
		if c.replicas.set > 0 {
			return
		}
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
