package redisconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// aside lets what this process asks for itself (a ping, a heartbeat, a cluster's topology) use the connections that calls use, though
// calls fail at once when there is none. A call that finds none while such a question has one waits until the question is over, as long
// as it has time, and tries again: without it, there would have been a connection.
type aside struct {
	ended atomic.Uint64 // questions that are over and had a connection

	mu    sync.Mutex
	asked int           // questions under way
	over  chan struct{} // closed when one of them is
}

// ask runs a question.
func (a *aside) ask(ctx context.Context, cmd goredis.Cmder, next goredis.ProcessHook) error {
	if a == nil {
		return next(ctx, cmd)
	}
	a.mu.Lock()
	if a.asked++; a.over == nil {
		a.over = make(chan struct{})
	}
	a.mu.Unlock()
	err := next(ctx, cmd)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked--
	if !errors.Is(err, goredis.ErrPoolTimeout) { // else it had no connection
		a.ended.Add(1)
	}
	close(a.over)
	if a.over = nil; a.asked > 0 {
		a.over = make(chan struct{})
	}
	return err
}

// call runs a call. It runs it again if it found no connection and a question had one meanwhile.
func (a *aside) call(ctx context.Context, cmd goredis.Cmder, next goredis.ProcessHook) error {
	if a == nil {
		return next(ctx, cmd)
	}
	for {
		ended := a.ended.Load()
		err := next(ctx, cmd)
		if !errors.Is(err, goredis.ErrPoolTimeout) || !a.await(ctx, ended) {
			return err
		}
	}
}

// await waits until a question is over that had a connection, later than when ended of them were. It returns false if there is none.
func (a *aside) await(ctx context.Context, ended uint64) bool {
	for ctx.Err() == nil {
		a.mu.Lock()
		over, more := a.over, a.ended.Load() != ended
		a.mu.Unlock()
		switch {
		case more:
			return true
		case over == nil:
			return false
		}
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
	return false
}
