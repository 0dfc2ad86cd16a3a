package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// lane waits for a lane of a client that is connected.
func lane(t testing.TB, client goredis.UniversalClient) *redisconn.Lane {
	t.Helper()
	var n *redisconn.Lane
	redistest.Eventually(t, "a lane is connected", func(context.Context) error {
		if n = redisconn.LanesOf(client).Take(); n == nil {
			return errors.New("no lane")
		}
		return nil
	})
	return n
}

// room is how long answers may be.
const room = 4 << 20

// do makes one call on a lane of a client.
func do(ctx context.Context, t testing.TB, client goredis.UniversalClient, within time.Duration, words ...string) (string, error) {
	t.Helper()
	n := lane(t, client)
	defer n.Release()
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	answer, err := n.Do(ctx, time.Now().Add(within), []byte(text), make([]byte, 0, room))
	return string(answer), err
}

// Texts of any length arrive in full, errors of Redis leave the connection open, and its user and password, and its
// database, are used.
func TestLanes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, "--user", "counter", "on", ">"+secret, "~*", "+@all")
	var connections redisconn.Connections
	client := connect(t, redisconn.Options{URL: "redis://" + r.Addr + "/3", Auth: "counter:" + secret, Lanes: 2, Connections: &connections})
	for _, size := range []int{0, 1, 8, 9, 4096, 5000, 3 << 20} {
		want := strings.Repeat("x", size)
		if got, err := do(t.Context(), t, client, time.Minute, "echo", want); err != nil || got != want {
			t.Errorf("%d bytes: %d bytes, %v", size, len(got), err)
		}
	}
	opened := connections.Opened()
	if _, err := do(t.Context(), t, client, time.Minute, "evalsha", strings.Repeat("0", 40), "0"); !goredis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Errorf("an unknown script: %v", err)
	}
	long := "MINE " + strings.Repeat("y", 9000)
	if _, err := do(t.Context(), t, client, time.Minute, "eval", "return redis.error_reply(ARGV[1])", "0", long); !goredis.HasErrorPrefix(err, "MINE ") || len(err.Error()) > 600 {
		t.Errorf("a long error: %.700v", err)
	}
	if got, err := do(t.Context(), t, client, time.Minute, "eval", "redis.call('SET', KEYS[1], 'here') return 'done'", "1", "k"); got != "done" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got := client.Get(bounded(t), "k").Val(); got != "here" {
		t.Errorf("the client finds %q in its database", got)
	}
	if n := connections.Opened() - opened; n > 2 { // the second lane, and one of the pool
		t.Errorf("%d connections were opened after the first", n)
	}
}

// Lanes use a part of the pool's connections, and one connection is always left for the pool.
func TestLanesAreConnectionsOfThePool(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]struct{ pool, lanes int }{1: {1, 0}, 2: {1, 1}, 3: {1, 2}, 10: {8, 2}} {
		client := connect(t, redisconn.Options{URL: "127.0.0.1:1", PoolSize: size, Lanes: 2})
		pool := client.(interface{ Options() *goredis.Options }).Options().PoolSize
		if lanes := redisconn.LanesOf(client).Len(); pool != want.pool || lanes != want.lanes {
			t.Errorf("of %d: %d in the pool, %d lanes", size, pool, lanes)
		}
	}
	for _, o := range []redisconn.Options{{Type: "CLUSTER", URL: "127.0.0.1:1", Lanes: 2}, {Type: "SENTINEL", URL: "name,127.0.0.1:1", Lanes: 2}, {URL: "127.0.0.1:1"}} {
		if lanes := redisconn.LanesOf(connect(t, o)); lanes.Len() != 0 || lanes.Take() != nil {
			t.Errorf("%+v has lanes", o)
		}
	}
}

// An answer that comes after its call has ended is discarded: the next call gets the right one.
func TestLateAnswersOfLanes(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := connect(t, redisconn.Options{URL: r.Addr, Lanes: 1, Breaker: &redisconn.BreakerOptions{Silence: time.Minute}})
	for i, end := range []func(ctx context.Context) (string, error){
		func(ctx context.Context) (string, error) {
			return do(ctx, t, client, 20*time.Millisecond, "echo", "late")
		},
		func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			return do(ctx, t, client, time.Hour, "echo", "late")
		},
	} {
		if got, err := do(t.Context(), t, client, time.Minute, "echo", "early"); got != "early" || err != nil {
			t.Fatalf("%d, before: %q, %v", i, got, err)
		}
		r.Pause(t)
		got, err := end(t.Context())
		r.Continue(t)
		if got != "" || !redisconn.IsTimeout(err) {
			t.Errorf("%d: %q, %v", i, got, err)
		}
		if got, err := do(t.Context(), t, client, time.Minute, "echo", "own"); got != "own" || err != nil {
			t.Errorf("%d, after: %q, %v", i, got, err)
		}
	}
}

// A server that hangs up while a lane is idle, as with its timeout setting or at a restart, does not make calls fail.
func TestIdleLanes(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	for name, where := range map[string]func(testing.TB) (*redistest.Server, redisconn.Options){
		"plain": func(t testing.TB) (*redistest.Server, redisconn.Options) {
			r := redistest.Start(t)
			return r, redisconn.Options{URL: r.Addr}
		},
		"TLS": func(t testing.TB) (*redistest.Server, redisconn.Options) {
			r := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
			return r, redisconn.Options{URL: r.Addr, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, o := where(t)
			o.Lanes = 1
			client := connect(t, o)
			for range 3 {
				for i := range 3 {
					if got, err := do(t.Context(), t, client, time.Minute, "echo", fmt.Sprint(i)); got != fmt.Sprint(i) || err != nil {
						t.Errorf("%q, %v", got, err)
					}
				}
				r.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes")
			}
		})
	}
}

// A lane's calls and failures are those of its node's breaker: silence opens it, and nothing is sent while it is open.
func TestLanesHaveTheBreaker(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	client := connect(t, redisconn.Options{URL: r.Addr, Lanes: 2, Logger: slog.New(slog.DiscardHandler), Breaker: &redisconn.BreakerOptions{Silence: 100 * time.Millisecond, OpenFor: time.Hour}})
	n := lane(t, client)
	defer n.Release()
	call := []byte("*2\r\n$4\r\necho\r\n$1\r\nx\r\n")
	if _, err := n.Do(t.Context(), time.Now().Add(time.Minute), call, make([]byte, 0, room)); err != nil {
		t.Fatal(err)
	}
	other := lane(t, client)
	defer other.Release()
	r.Pause(t)
	if _, err := n.Do(t.Context(), time.Now().Add(time.Minute), call, make([]byte, 0, room)); !redisconn.IsTimeout(err) {
		t.Errorf("in silence: %v", err)
	}
	if _, err := other.Do(t.Context(), time.Now().Add(time.Minute), call, make([]byte, 0, room)); !errors.Is(err, redisconn.ErrBreakerOpen) {
		t.Errorf("with the breaker open: %v", err)
	}
}

// An answer that is not one of a script ends the call and the connection, within bounds.
func TestHostileAnswersOnLanes(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"+OK\r\n":                              "where the answer of a script belongs",
		"$4194305\r\nabc":                      "where the answer of a script belongs", // longer than its room
		"$-1\r\n":                              "where the answer of a script belongs",
		"$2\r\nOKxx\r\n":                       "where the answer of a script belongs",
		"-ERR no\r\n$2\r\nOK\r\n":              "where the answer of a script belongs",
		"$2\r\nOK\r\n$2\r\n":                   "where the answer of a script belongs",
		"\r\n":                                 "where the answer of a script belongs",
		"$2000000000\r\nabc":                   "a text of 2000000000 bytes",
		"*1\r\n$2\r\nOK\r\n":                   "where the answer of a script belongs",
		"$" + strings.Repeat("1", 20) + "\r\n": "bytes; at most 16777216 are read",
		strings.Repeat("x", 60_000) + "\r\n":   "where the answer of a script belongs",
		"-" + strings.Repeat("ERR \x1b[31m", 5000) + "\r\n": "... (",
	} {
		var connections redisconn.Connections
		client := connect(t, redisconn.Options{URL: redistest.Answering(t, nil, sent, ""), Lanes: 1, Logger: slog.New(slog.DiscardHandler), Connections: &connections})
		_, err := do(t.Context(), t, client, time.Minute, "echo", "x")
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 700 {
			t.Errorf("%.20q: %v", sent, err)
		}
		if open := connections.Open(); open != 0 && strings.Count(sent, "ERR") != 5000 {
			t.Errorf("%.20q: the connection is still open", sent)
		}
	}
}
