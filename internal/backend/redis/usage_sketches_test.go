package redis_test

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
	"github.com/ratelimitd/ratelimitd/internal/usage"
)

// Hits that Redis does not take are dropped and counted. A decision does not notice, and later hits are written.
func TestHistoryWithoutRedis(t *testing.T) {
	t.Parallel()
	server, metrics := redistest.Start(t), prometheus.NewRegistry()
	x := usage.New(usage.Options{
		Store: new(usage.Memory), Sketches: &redis.UsageSketches{Client: connect(t, redisconn.Options{URL: server.Addr}), Prefix: "{history}:"},
		Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
	})
	now, key := time.Now(), []byte("k")
	server.Stop(t)
	x.Count(now, key, 3, false)
	x.Count(now, key, 4, true)
	x.FlushHistory(t.Context(), now)
	if n := value(t, metrics, "ratelimitd_usage_history_dropped_total"); n != 7 {
		t.Errorf("%v hits dropped, want 7", n)
	}
	if got, err := x.History(t.Context(), now, [][]byte{key}); err == nil {
		t.Errorf("%v without Redis", got)
	}
	server.Restart(t)
	for hits := int64(1); ; hits++ { // the client may have to connect again
		now = now.Add(time.Second)
		before := value(t, metrics, "ratelimitd_usage_history_dropped_total")
		x.Count(now, key, hits, false)
		x.FlushHistory(t.Context(), now)
		if value(t, metrics, "ratelimitd_usage_history_dropped_total") > before && hits < 1000 {
			continue
		}
		all, err := x.History(t.Context(), now, [][]byte{key})
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, m := range all[0] {
			sum += int64(m.Allowed.Hits) + int64(m.Refused.Hits)
		}
		if sum != hits {
			t.Errorf("%d hits, want %d", sum, hits)
		}
		return
	}
}

// Cells in Redis add up, stay at their maximum, need the rights that docs/do/redis.md lists, and expire.
func TestUsageSketches(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"few rights": func(t *testing.T) redisconn.Options {
			return redisconn.Options{URL: redistest.Start(t, "--user", "default", "on", "nopass", "~*", "-@all", "+bitfield", "+expire", "+ping").Addr}
		},
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &redis.UsageSketches{Client: connect(t, start(t)), Prefix: "{history}:"}
			all, ones := make([]uint32, usage.Cells), make([]uint32, usage.Cells)
			for i := range all {
				all[i], ones[i] = uint32(i), 1
			}
			const last = usage.Cells - 1
			for _, add := range []struct {
				minute      int64
				cells, hits []uint32
			}{
				{100, all, ones}, {100, all, ones},
				{101, []uint32{last, 0}, []uint32{7, math.MaxUint32}}, {101, []uint32{0}, []uint32{1}},
			} {
				if err := u.AddTo(t.Context(), add.minute, add.cells, add.hits); err != nil {
					t.Fatal(err)
				}
			}
			got, err := u.Read(t.Context(), 99, 4, []uint32{last, 0, 1000})
			if err != nil {
				t.Fatal(err)
			}
			want := [][]uint32{{0, 0, 0}, {2, 2, 2}, {7, math.MaxUint32, 0}, {0, 0, 0}}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%v, want %v", got, want)
			}
			if name == "cluster" { // this needs rights that the service does not
				if ttl := u.Client.PTTL(t.Context(), "{history}:100").Val(); ttl < time.Hour || ttl > 65*time.Minute {
					t.Errorf("a minute expires in %s", ttl)
				}
				if bytes := u.Client.MemoryUsage(t.Context(), "{history}:101").Val(); bytes > 165_000 {
					t.Errorf("a minute takes %d bytes, and docs/do/redis.md says 164 KB", bytes)
				}
			}
		})
	}
}
