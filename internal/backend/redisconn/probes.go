package redisconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

type probeKey struct{}

// Probe marks a command as one that this replica sends for itself, such as a ping or a heartbeat: calls do not fail
// because a probe has the last connection. A marked ping passes the breaker, because it asks whether Redis is there.
func Probe(ctx context.Context) context.Context { return context.WithValue(ctx, probeKey{}, true) }

func isProbe(ctx context.Context) bool { return ctx.Value(probeKey{}) != nil }

// probes lets probes use the connections of calls where calls fail immediately if none is free
// (POOL_ON_EMPTY_BEHAVIOR=ERROR). A call that finds no connection while a probe has one waits until the probe ends,
// within the call's time, and tries again: without the probe it would have had a connection. A nil *probes does
// nothing.
type probes struct {
	served atomic.Uint64 // probes that have ended and had a connection

	mu       sync.Mutex
	inFlight int
	ended    chan struct{} // closed when the next probe ends
}

// runProbe sends a probe.
func (p *probes) runProbe(ctx context.Context, cmd goredis.Cmder, send goredis.ProcessHook) error {
	if p == nil {
		return send(ctx, cmd)
	}
	p.mu.Lock()
	if p.inFlight++; p.ended == nil {
		p.ended = make(chan struct{})
	}
	p.mu.Unlock()
	err := send(ctx, cmd)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if !errors.Is(err, goredis.ErrPoolTimeout) { // otherwise the call had a connection
		p.served.Add(1)
	}
	close(p.ended)
	if p.ended = nil; p.inFlight > 0 {
		p.ended = make(chan struct{})
	}
	return err
}

// runCall sends a call. It sends it again if no connection was free while a probe had one.
func (p *probes) runCall(ctx context.Context, cmd goredis.Cmder, send goredis.ProcessHook) error {
	if p == nil {
		return send(ctx, cmd)
	}
	for {
		served := p.served.Load()
		err := send(ctx, cmd)
		if !errors.Is(err, goredis.ErrPoolTimeout) || !p.await(ctx, served) {
			return err
		}
	}
}

// await waits until more probes than served have ended that had a connection. It returns false if none is in flight, or
// the time is up.
func (p *probes) await(ctx context.Context, served uint64) bool {
	for ctx.Err() == nil {
		p.mu.Lock()
		ended, more := p.ended, p.served.Load() != served
		p.mu.Unlock()
		switch {
		case more:
			return true
		case ended == nil:
			return false
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	return false
}
