package redisconn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// warmup makes a connection after a call that timed out. A call that waits for its connection may have too little time
// left for its answer, and the connection is closed with it. If Redis is far away that would happen to every call. A
// ping has the time, and leaves its connection to the next call. A nil *warmup does nothing.
type warmup struct {
	client *goredis.Client
	busy   atomic.Bool
}

const warmupTimeout = 3 * time.Second

// after pings in the background if a call's error shows that its time was up.
func (w *warmup) after(err error) {
	if w == nil || !IsTimeout(err) || errors.Is(err, goredis.ErrPoolTimeout) || !w.busy.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.busy.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), warmupTimeout)
		defer cancel()
		_ = w.client.Ping(Probe(ctx)).Err() // the next call will see whether it worked
	}()
}
