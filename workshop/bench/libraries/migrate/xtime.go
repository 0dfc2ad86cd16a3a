package migrate

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// job is a program with a limit of 100 a second and a burst of 20, once with each library. It waits for 1 event and
// asks for 1, 18 and 18 more: 1 + 1 + 18 fit, the last 18 do not.
type job func(ctx context.Context) ([]bool, error)

func rateLimiter(ctx context.Context) ([]bool, error) {
	l := rate.NewLimiter(100, 20)
	if err := l.Wait(ctx); err != nil {
		return nil, err
	}
	answers := []bool{l.Allow(), l.AllowN(time.Now(), 18), l.AllowN(time.Now(), 18)}
	l.SetLimit(200)
	l.SetBurst(40)
	return answers, nil
}

func keyedInsteadOfRate(ctx context.Context) ([]bool, error) {
	k, err := ratelimit.NewKeyed(ratelimit.Bucket(100, time.Second, 20))
	if err != nil {
		return nil, err
	}
	if err := k.Wait(ctx, "all"); err != nil {
		return nil, err
	}
	one, err := k.Allow(ctx, "all")
	if err != nil {
		return nil, err
	}
	some, err := k.AllowN(ctx, "all", 18)
	if err != nil {
		return nil, err
	}
	more, err := k.AllowN(ctx, "all", 18)
	if err != nil {
		return nil, err
	}
	return []bool{one, some, more}, k.SetLimit("all", ratelimit.Bucket(200, time.Second, 40))
}

type visitor struct {
	limiter *rate.Limiter
	seen    time.Time
}

// visitors is the map of limiters that programs have around x/time/rate.
type visitors struct {
	mu  sync.Mutex
	all map[string]*visitor
}

func (v *visitors) allow(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.all[id]
	if one == nil {
		one = &visitor{limiter: rate.NewLimiter(100, 20)}
		v.all[id] = one
	}
	one.seen = time.Now()
	return one.limiter.Allow()
}

// forget runs every minute.
func (v *visitors) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, one := range v.all {
		if time.Since(one.seen) > time.Minute {
			delete(v.all, id)
		}
	}
}
