package servicetest

import (
	"context"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Counts reads the hits of counters from these servers, by the value of their entry. Where servers differ, the highest
// count wins. The keys start with prefix; the limits are fixed windows.
func Counts(t testing.TB, prefix string, servers ...*redistest.Server) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	all := make(map[string]int64)
	for _, server := range servers {
		conn := server.Client(t).Conn()
		defer func() { _ = conn.Close() }()
		_ = conn.ReadOnly(ctx).Err() // lets a replica of a cluster answer; other servers may reject it
		keys, err := conn.Keys(ctx, prefix+"*=*|*").Result()
		if err != nil {
			t.Fatal(err)
		}
		counts, err := conn.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, k := range keys {
				p.Get(ctx, k)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			n, err := counts[i].(*goredis.StringCmd).Int64()
			if err != nil {
				t.Fatalf("the counter %s: %v", k, err)
			}
			_, value, _ := strings.Cut(k, "=")
			value, _, _ = strings.Cut(value, "|")
			all[value] = max(all[value], n&(1<<40-1)) // the higher bits hold the window's number
		}
	}
	return all
}
