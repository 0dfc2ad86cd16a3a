package main

import (
	"context"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// eachRedis runs a test for the REDIS_... variables, and again for REDIS_PERSECOND_... with a healthy main Redis as
// well. The Redis under test holds the counters of limit k.
func eachRedis(t *testing.T, test func(t *testing.T, prefix string, start func(t *testing.T, variables map[string]string, others ...string) probed)) {
	for prefix, rules := range map[string]string{"REDIS": fiveADay, "REDIS_PERSECOND": strings.Replace(fiveADay, "day", "second", 1)} {
		t.Run(prefix, func(t *testing.T) {
			env := map[string]string{}
			if prefix == "REDIS_PERSECOND" {
				env["REDIS_PERSECOND"], env["REDIS_URL"] = "true", redistest.Start(t).Addr
			}
			dir := rulesOf(t, rules)
			test(t, prefix, func(t *testing.T, variables map[string]string, others ...string) probed {
				all := maps.Clone(env)
				for name, value := range variables {
					if strings.HasPrefix(name, "TLS_") { // both have the same certificates
						all["REDIS_"+name] = value
					} else {
						all[prefix+"_"+name] = value
					}
				}
				for i := 0; i < len(others); i += 2 {
					all[others[i]] = others[i+1]
				}
				return probe(t, startProcess(t, all, "--rules", dir))
			})
		})
	}
}

// These variables are the address of a Redis and its credentials. With all of them the service reaches the Redis;
// without any one of them it does not.
func TestVariablesOfConnections(t *testing.T) {
	ca, other := redistest.NewCA(t), redistest.NewCA(t)
	mine := ca.Issue(t, "client")
	secure := redistest.StartWith(t, redistest.Setup{
		TLS: ca.Server(ca.Issue(t, "127.0.0.1"), true), Password: "p4ss", Args: []string{"--user", "counter", "on", ">counter-p4ss", "~*", "+@all"},
	})
	misnamed := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "redis.example.com"), false)})
	plain := redistest.Start(t)
	watched := redistest.StartWatched(t, redistest.Setup{SentinelPassword: "s3ntinel"})
	file := t.TempDir() + "/auth"
	if err := os.WriteFile(file, []byte("counter:counter-p4ss\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := redistest.StartCluster(t, redistest.Setup{})

	for name, c := range map[string]struct {
		good map[string]string
		bad  map[string]string // tried one at a time; an empty value removes the variable
	}{
		"TLS": {
			map[string]string{"URL": secure.Addr, "AUTH": "counter:counter-p4ss", "TLS": "true", "TLS_CACERT": ca.File, "TLS_CLIENT_CERT": mine.Cert, "TLS_CLIENT_KEY": mine.Key},
			map[string]string{"URL": plain.Addr, "AUTH": "counter:wrong", "TLS": "false", "TLS_CACERT": other.File},
		},
		"a file with credentials": {
			map[string]string{"URL": secure.Addr, "AUTH_FILE": file, "TLS": "true", "TLS_CACERT": ca.File, "TLS_CLIENT_CERT": mine.Cert, "TLS_CLIENT_KEY": mine.Key},
			map[string]string{"AUTH_FILE": ""},
		},
		"another name": {
			map[string]string{"URL": misnamed.Addr, "TLS": "true", "TLS_CACERT": ca.File, "TLS_SKIP_HOSTNAME_VERIFICATION": "true"},
			map[string]string{"TLS_SKIP_HOSTNAME_VERIFICATION": "false", "TLS_CACERT": other.File},
		},
		"sentinels": {
			map[string]string{"URL": watched.URL(), "TYPE": "SENTINEL", "SENTINEL_AUTH": "s3ntinel"},
			map[string]string{"SENTINEL_AUTH": "wrong"},
		},
		"a cluster": {
			map[string]string{"URL": cluster.Nodes[0].Addr, "TYPE": "CLUSTER"},
			map[string]string{"URL": plain.Addr},
		},
		"a socket": {map[string]string{"URL": plain.Socket, "SOCKET_TYPE": "unix"}, map[string]string{"URL": plain.Socket + "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachRedis(t, func(t *testing.T, prefix string, start func(*testing.T, map[string]string, ...string) probed) {
				p := start(t, c.good)
				if !p.health(t) {
					t.Fatalf("with %v it is not reached:\n%s", c.good, p.Log)
				}
				client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
				// a busy Redis may not answer in time
				if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil && status.Code(err) != codes.Unavailable {
					t.Error(err)
				}
				for variable, value := range c.bad {
					wrong := maps.Clone(c.good)
					if wrong[variable] = value; value == "" {
						delete(wrong, variable)
					}
					if p := start(t, wrong); p.health(t) {
						t.Errorf("with %s_%s=%q it is reached", prefix, variable, value)
					}
				}
			})
		})
	}
}

// An invalid value prevents startup, and the error names the variable.
func TestVariablesThatCannotBe(t *testing.T) {
	racetest.Sequential(t)
	for want, env := range map[string]map[string]string{
		"REDIS_SOCKET_TYPE":    {"REDIS_URL": "localhost:1", "REDIS_SOCKET_TYPE": "udp"},
		"REDIS_TYPE":           {"REDIS_URL": "localhost:1", "REDIS_TYPE": "RING"},
		"REDIS_TLS_CLIENT_KEY": {"REDIS_URL": "localhost:1", "REDIS_TLS": "true", "REDIS_TLS_CLIENT_CERT": "x"},
		"REDIS_TLS_CACERT":     {"REDIS_URL": "localhost:1", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "none.pem"},
		"REDIS_PERSECOND_URL":  {"REDIS_URL": "localhost:1", "REDIS_PERSECOND": "true"},
	} {
		if code, text := output(t, env, "--rules", rulesOf(t, fiveADay)); code == 0 || !strings.Contains(text, want) {
			t.Errorf("%v: it ended with %d and said\n%s", env, code, text)
		}
	}
}

// The variables that tune envoyproxy/ratelimit's pipelines are accepted. The log has one line about their missing
// effect.
func TestVariablesWithoutEffect(t *testing.T) {
	racetest.Sequential(t)
	r := redistest.Start(t)
	for _, c := range []struct {
		variables map[string]string
		times     int
	}{
		{nil, 0},
		{map[string]string{"PIPELINE_WINDOW": "150us"}, 1},
		{map[string]string{"PIPELINE_LIMIT": "8"}, 1},
		{map[string]string{"CLUSTER_PIPELINE_PARALLELISM": "4"}, 1},
		{map[string]string{"PIPELINE_WINDOW": "150us", "PIPELINE_LIMIT": "8", "CLUSTER_PIPELINE_PARALLELISM": "4"}, 1},
	} {
		eachRedis(t, func(t *testing.T, prefix string, start func(*testing.T, map[string]string, ...string) probed) {
			variables := map[string]string{"URL": r.Addr}
			maps.Copy(variables, c.variables)
			p := start(t, variables)
			if n := strings.Count(p.Log.String(), "accepted without effect"); n != c.times {
				t.Errorf("%v: it was said %d times, want %d:\n%s", c.variables, n, c.times, p.Log)
			}
			for name := range c.variables {
				if !strings.Contains(p.Log.String(), prefix+"_"+name) {
					t.Errorf("%s_%s was not named:\n%s", prefix, name, p.Log)
				}
			}
		})
	}
}

// silent accepts connections and never answers.
type silent struct {
	net.Listener
	left chan time.Duration // lifetime of each connection
}

func startSilent(t *testing.T) *silent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silent{l, make(chan time.Duration, 100)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				start := time.Now()
				_, _ = io.Copy(io.Discard, c)
				s.left <- time.Since(start)
				c.Close()
			}()
		}
	}()
	return s
}

// REDIS_TIMEOUT bounds connecting, including the login. REDIS_OP_TIMEOUT bounds a call. Both apply to both Redis.
func TestVariablesOfTime(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	eachRedis(t, func(t *testing.T, prefix string, start func(*testing.T, map[string]string, ...string) probed) {
		s := startSilent(t)
		start(t, map[string]string{"URL": s.Addr().String(), "AUTH": "x", "TIMEOUT": "300ms"})
		select {
		case stayed := <-s.left:
			if stayed < 250*time.Millisecond {
				t.Errorf("with %s_TIMEOUT=300ms a connection was given up after %v", prefix, stayed)
			}
		case <-time.After(8 * time.Second): // less than the default of 10 s
			t.Errorf("with %s_TIMEOUT=300ms a connection was not given up within 8 s", prefix)
		}

		call := func(p probed) time.Duration {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(ctx, ask("d", "k", "v")); status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
			}
			return time.Since(began)
		}
		// The breaker opens when Redis has sent nothing for a second, regardless of the timeout.
		for _, variables := range [][]string{{}, {"REDIS_OP_TIMEOUT", "20s"}, {"REDIS_OP_TIMEOUT", "700ms"}} {
			longest, least := patience/2, time.Second
			if len(variables) > 0 && variables[1] == "700ms" {
				least = 700 * time.Millisecond
			}
			if took := call(start(t, map[string]string{"URL": s.Addr().String()}, variables...)); took < least || took > longest {
				t.Errorf("with %v a call took %v", variables, took)
			}
		}
	})
}

// The variables of the pool set the number of connections and the behaviour of a call when none is free. Redis holds
// back all calls during the test.
func TestVariablesOfThePool(t *testing.T) {
	const callers = 6
	for name, c := range map[string]struct {
		variables map[string]string
		most      int  // connections
		fails     bool // calls fail immediately when no connection is free
	}{
		"three":           {map[string]string{"POOL_SIZE": "3"}, 3, false},
		"three, said":     {map[string]string{"POOL_SIZE": "3", "POOL_ON_EMPTY_BEHAVIOR": "WAIT"}, 3, false},
		"one, and errors": {map[string]string{"POOL_SIZE": "1", "POOL_ON_EMPTY_BEHAVIOR": "ERROR"}, 1, true},
		"one, and more":   {map[string]string{"POOL_SIZE": "1", "POOL_ON_EMPTY_BEHAVIOR": "CREATE"}, callers, false},
		"ten by default":  {nil, callers, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachRedis(t, func(t *testing.T, prefix string, start func(*testing.T, map[string]string, ...string) probed) {
				r := redistest.Start(t, "--rename-command", "TIME", "") // without the time in scripts, calls do not share trips
				admin := r.Client(t)
				variables := map[string]string{"URL": r.Addr}
				maps.Copy(variables, c.variables)
				p := start(t, variables, "REDIS_OP_TIMEOUT", "20s")
				client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
				if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil {
					t.Fatal(err)
				}
				// Two more connections do not belong to the pool: one waits for other processes' resets, and one sends resets and
				// tells the processes that share REDIS_URL that this one is there.
				announces := 0
				if prefix == "REDIS" {
					until(t, "the process is in the list of the fleet", func() bool { return len(admin.Keys(t.Context(), "{fleet}:*").Val()) == 1 })
					announces = 1
				}
				connections := func() (n int) {
					list := admin.Do(t.Context(), "client", "list", "type", "normal").Val()
					for line := range strings.Lines(list.(string)) {
						if strings.Contains(line, " addr=127.0.0.1:") && !strings.Contains(line, "cmd=xrea") && !strings.Contains(line, "cmd=xrev") {
							n++
						}
					}
					return n - announces
				}
				call := func() error {
					_, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
					return err
				}
				// round holds back all calls until the pool is used up. It returns how many calls found no free connection, and how
				// many failed because Redis was silent for a second: that happens on a busy machine.
				round := func() (rejected, silent int) {
					until(t, "Redis answers", func() bool { return call() == nil })
					if err := admin.Do(t.Context(), "client", "pause", "60000", "write").Err(); err != nil {
						t.Fatal(err)
					}
					ended := make(chan error, callers)
					for range callers {
						go func() { ended <- call() }()
					}
					count := func(err error) {
						switch {
						case status.Code(err) != codes.Unavailable:
							t.Errorf("a call ended with %v while Redis held it back", err)
						case strings.Contains(err.Error(), "connection pool timeout"):
							rejected++
						default:
							silent++
						}
					}
					until(t, "the pool is used up", func() bool {
						for len(ended) > 0 {
							count(<-ended)
						}
						return rejected+silent == callers || connections() >= c.most && (!c.fails || rejected == callers-1)
					})
					if err := admin.Do(t.Context(), "client", "unpause").Err(); err != nil {
						t.Fatal(err)
					}
					for range callers - rejected - silent {
						if err := <-ended; err != nil {
							count(err)
						}
					}
					// Redis notices a moment later that a connection has been given up. One too many in the pool would stay.
					until(t, "there are no more connections than may be", func() bool { return connections() <= c.most })
					return rejected, silent
				}
				want := 0
				if c.fails {
					want = callers - 1
				}
				until(t, "a round in which Redis is not silent for too long", func() bool {
					rejected, silent := round()
					if silent == 0 && rejected != want {
						t.Errorf("%d of %d calls found no free connection, want %d", rejected, callers, want)
					}
					return silent == 0
				})
			})
		})
	}
}
