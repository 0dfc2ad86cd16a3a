package redis_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// The index of usage keeps texts that last, in pages, with the rights that docs/reference/redis-keys.md lists, and
// expires on its own.
func TestUsageSets(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"few rights": func(t *testing.T) redisconn.Options {
			return redisconn.Options{URL: redistest.Start(t, "--user", "default", "on", "nopass", "~*", "-@all",
				"+evalsha", "+eval", "+pttl", "+zadd", "+zrangebyscore", "+zrem", "+zremrangebyrank", "+pexpire", "+zscan", "+ping").Addr}
		},
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &redis.UsageSets{Client: connect(t, start(t)), Prefix: "usage:"}
			now := time.Now()
			in := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
			add := func(at time.Time, sets map[string]map[string]int64) {
				t.Helper()
				if dropped, err := u.Add(t.Context(), at, sets); err != nil || dropped != 0 {
					t.Fatalf("%d dropped: %v", dropped, err)
				}
			}
			all := func(at time.Time, set string) (texts []string) {
				t.Helper()
				for cursor := uint64(0); ; {
					page, next, err := u.Page(t.Context(), at, set, cursor, 100)
					if err != nil {
						t.Fatal(err)
					}
					if len(page) > 200 {
						t.Errorf("a page of %d", len(page))
					}
					texts = append(texts, page...)
					if cursor = next; cursor == 0 {
						slices.Sort(texts)
						return slices.Compact(texts)
					}
				}
			}
			many := make(map[string]int64)
			for i := range 3000 {
				many[fmt.Sprintf("text %d \xff\x00", i)] = in(time.Minute)
			}
			add(now, map[string]map[string]int64{"many": many, "few": {"a": in(time.Hour), "b": in(time.Second)}})
			// the later end of a counts
			add(now, map[string]map[string]int64{"few": {"a": in(time.Second), "c": in(time.Second)}})
			if got := all(now, "many"); len(got) != len(many) {
				t.Errorf("%d of %d texts listed", len(got), len(many))
			}
			if got := all(now, "few"); !slices.Equal(got, []string{"a", "b", "c"}) {
				t.Errorf("%q", got)
			}
			later := now.Add(2 * time.Second)
			if got := all(later, "few"); !slices.Equal(got, []string{"a"}) {
				t.Errorf("later: %q", got)
			}
			// add removes texts that have ended, and keeps the set for a
			add(later, map[string]map[string]int64{"few": {"d": in(time.Minute)}})
			if got := all(now, "few"); !slices.Equal(got, []string{"a", "d"}) {
				t.Errorf("later, written again: %q", got)
			}
			// The rest needs no rights of the service.
			if name == "cluster" {
				if ttl := u.Client.PTTL(t.Context(), "usage:few").Val(); ttl < 50*time.Minute || ttl > time.Hour {
					t.Errorf("the set expires in %s, want an hour", ttl)
				}
				if n := u.Client.ZCard(t.Context(), "usage:few").Val(); n != 2 {
					t.Errorf("%d members are kept, want 2", n)
				}
			}
		})
	}
}

// A flood of descriptors with one entry costs Redis a bounded set. The figures are in docs/reference/redis-keys.md.
func TestUsageSetIsBounded(t *testing.T) {
	t.Parallel()
	const most, more, length = 100_000, 1500, 32
	server := redistest.Start(t)
	u := &redis.UsageSets{Client: server.Client(t), Prefix: "usage:"}
	now := time.Now()
	texts := make(map[string]int64, most+more)
	for i := range most + more {
		texts[fmt.Sprintf("%0*d", length, i)] = now.Add(time.Hour).UnixMilli() + int64(i)
	}
	dropped, err := u.Add(t.Context(), now, map[string]map[string]int64{"flooded": texts})
	if err != nil || dropped != more {
		t.Errorf("%d dropped, want %d: %v", dropped, more, err)
	}
	bytes, err := u.Client.MemoryUsage(t.Context(), "usage:flooded", 0).Result() // 0 samples all members
	if err != nil {
		t.Fatal(err)
	}
	if each := float64(bytes)/most - length; each < 95 || each > 115 {
		t.Errorf("a member takes its text and %.0f bytes, want about 105", each)
	}
}
