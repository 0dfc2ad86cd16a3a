package redisconn

import (
	"context"
	"errors"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// hook adds behaviour that go-redis has no options for. All fields are optional.
type hook struct {
	login           *login                      // part of dialling; nil if connections are not dialled with this hook
	breaker         *breaker                    // notified when bytes arrive on connections
	topologyTimeout time.Duration               // bounds a question about a cluster's topology
	topology        func([]goredis.ClusterSlot) // called with each answer to such a question
	host            string                      // host of the node that is asked for the topology
	pollSentinels   func()                      // called with every call; asks sentinels for the primary now and then
	warmup          *warmup                     // makes a connection for later calls
	probes          *probes                     // keeps probes from making calls fail
	retire          func()                      // called when the server is no longer the primary
	// adds advice to the error of a connection that could not be made; may be nil
	undialled  func(error) error
	unanswered func(error) error // adds advice to the error of a call without an answer; may be nil
}

// DialHook wraps the dialling of each connection to a server that counts; sentinels are dialled without it.
func (h hook) DialHook(next goredis.DialHook) goredis.DialHook {
	if h.login == nil {
		return next
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			if h.undialled != nil {
				err = h.undialled(err)
			}
			return nil, err
		}
		if err := h.login.do(ctx, c); err != nil {
			_ = c.Close()
			return nil, err
		}
		if c, ok := c.(*conn); ok {
			c.breaker = h.breaker
		}
		return c, nil
	}
}

// ProcessHook wraps each command.
func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "hello" {
			// The library's own login, in the time of the first call that takes a new connection. The login is part of dialling
			// here. Another round trip would make a server that is far away unreachable in the time of a call.
			return nil
		}
		if h.pollSentinels != nil {
			h.pollSentinels()
		}
		slots, topology := cmd.(*goredis.ClusterSlotsCmd)
		if topology && h.topologyTimeout > 0 {
			// The library asks one node after the other, in the background and without a deadline. A node that hangs would delay
			// the discovery of its own failure.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, h.topologyTimeout)
			defer cancel()
		}
		var err error
		if topology {
			err = h.probes.runProbe(ctx, cmd, func(ctx context.Context, _ goredis.Cmder) error {
				return readSlots(ctx, slots, h.host, next)
			})
		} else if isProbe(ctx) {
			err = h.probes.runProbe(ctx, cmd, next)
		} else {
			err = h.probes.runCall(ctx, cmd, next)
		}
		if err != nil {
			h.warmup.after(err)
			err = h.failed(err)
		} else if topology && h.topology != nil {
			h.topology(slots.Val())
		}
		return err
	}
}

// ProcessPipelineHook wraps each pipeline.
func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if h.pollSentinels != nil {
			h.pollSentinels()
		}
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		h.warmup.after(err)
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				cmd.SetErr(h.failed(err))
			}
		}
		return presentable(err)
	}
}

// failed acts on the error of a command, and returns it as others may see it.
func (h hook) failed(err error) error {
	if h.retire != nil && (goredis.IsReadOnlyError(err) || goredis.HasErrorPrefix(err, "NOAUTH")) {
		// After a failover the address leads to another server, but open connections still to the former primary; or
		// connections were made before a password was set. The library closes the one that was used, if any. Each of the
		// others would fail one call.
		h.retire()
	}
	if h.unanswered != nil && (IsTimeout(err) || errors.Is(err, errSilent)) {
		err = h.unanswered(err)
	}
	return presentable(err)
}
