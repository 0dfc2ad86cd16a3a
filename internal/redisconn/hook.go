package redisconn

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// hook stands between the client and its connections, for what the library has no setting for.
type hook struct {
	lost     func()        // called when the server turns out not to be the one to ask any more; may be nil
	topology time.Duration // bounds a question about a cluster's topology; 0: does not
	login    *login        // is part of dialling; nil: this hook is not where connections are dialled
	look     *look         // for another primary now and then; may be nil
	spare    *spare        // makes a connection for the calls to come; may be nil
	guard    *breaker      // hears what comes on connections; may be nil
	aside    *aside        // what no call may fail for; may be nil
}

// DialHook stands around the making of each connection to a server that counts; sentinels are dialled elsewhere.
func (h hook) DialHook(next goredis.DialHook) goredis.DialHook {
	if h.login == nil {
		return next
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := h.login.do(ctx, c); err != nil {
			_ = c.Close()
			return nil, err
		}
		if c, ok := c.(*conn); ok {
			c.guard = h.guard
		}
		return c, nil
	}
}

// ProcessHook stands around each command.
func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "hello" {
			// The library's own login, in the time of the call that takes a new connection first. All that is to be said was
			// said when it was dialled; a round trip more, and a server far away would never be reached in the time of a call.
			return nil
		}
		h.look.now()
		_, topology := cmd.(*goredis.ClusterSlotsCmd)
		if topology && h.topology > 0 {
			// The library asks one node after the other, in the background without a deadline: one that hangs would
			// hold up the news of its own end.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, h.topology)
			defer cancel()
		}
		var err error
		if topology || isProbe(ctx) {
			err = h.aside.ask(ctx, cmd, next)
		} else {
			err = h.aside.call(ctx, cmd, next)
		}
		if err != nil {
			h.spare.after(err)
			err = h.judge(err)
		}
		return err
	}
}

// ProcessPipelineHook stands around each pipeline.
func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.look.now()
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		h.spare.after(err)
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil {
				cmd.SetErr(h.judge(err))
			}
		}
		return told(err)
	}
}

// judge acts on the error of a command, and returns what may be told of it.
func (h hook) judge(err error) error {
	if h.lost != nil && (goredis.IsReadOnlyError(err) || goredis.HasErrorPrefix(err, "NOAUTH")) {
		// After a failover the address leads to another server, but the connections still to the former primary; or
		// connections were made before a password was set. The library closes the one that was used, if any; the rest
		// would fail one call each.
		h.lost()
	}
	return told(err)
}

// told returns an error without what a server repeats of a command.
func told(err error) error {
	if text, cut := withoutArguments(err.Error()); cut {
		return refused{text}
	}
	return err
}

// withoutArguments cuts off what a server repeats of a command that it does not know: that may be a password, if AUTH or
// HELLO is what it does not know.
func withoutArguments(text string) (rest string, cut bool) {
	rest, _, cut = strings.Cut(text, "with args beginning with")
	return strings.TrimRight(rest, ", "), cut
}

// refused is a server's answer that was shortened.
type refused struct{ text string }

func (e refused) Error() string { return e.text }

// RedisError makes it an error that the client library recognizes.
func (refused) RedisError() {}

// look asks sentinels now and then who is primary. They tell by themselves when that changes, but only one of them is
// listened to, and it may hang or be gone. The former primary of a failover in good order takes writes for some ten seconds
// more: who missed the news would count there, for nobody.
type look struct {
	dial goredis.DialHook // asks sentinels, leaves the connections to a former primary, and dials
	last atomic.Int64     // when, in nanoseconds
}

// lookEvery is how often sentinels are asked, while there are calls.
const lookEvery = time.Second

func (l *look) now() {
	if l == nil {
		return
	}
	now, before := time.Now().UnixNano(), l.last.Load()
	if now-before < int64(lookEvery) || !l.last.CompareAndSwap(before, now) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(onlyLooking(context.Background()), lookTimeout)
		defer cancel()
		_, _ = l.dial(ctx, "tcp", "") // it never connects
	}()
}

type lookingKey struct{}

// onlyLooking marks a dial as one that is not to connect.
func onlyLooking(ctx context.Context) context.Context {
	return context.WithValue(ctx, lookingKey{}, true)
}

func isOnlyLooking(ctx context.Context) bool { return ctx.Value(lookingKey{}) != nil }

// spare makes a connection after a call whose time was up. A call that has to wait until it is connected may have too
// little left for its answer then, and the connection is closed with it: far from Redis, that would be so for every call.
// A ping has the time, and leaves its connection to the next call.
type spare struct {
	client *goredis.Client
	busy   atomic.Bool
}

const spareTimeout = 3 * time.Second

func (s *spare) after(err error) {
	if s == nil || !IsTimeout(err) || errors.Is(err, goredis.ErrPoolTimeout) || !s.busy.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer s.busy.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), spareTimeout)
		defer cancel()
		_ = s.client.Ping(Probe(ctx)).Err() // whether it works is the next call's business
	}()
}
