package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A commit has the numbers of a reservation that was answered, and each reservation has one commit.
func TestCommitsFollowTheirReservations(t *testing.T) {
	for name, keys := range map[string]int{"many counters": 50, "one counter": 1} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			held := make(map[string]bool)
			reserved, committed, strange := 0, 0, ""
			address, _ := serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
				mu.Lock()
				defer mu.Unlock()
				d := r.GetDescriptors()[0]
				counter, id := d.GetEntries()[0], d.GetEntries()[1]
				which := counter.GetKey() + " " + counter.GetValue() + " " + id.GetValue()
				hits := d.GetHitsAddend().GetValue()
				switch {
				case counter.GetKey() == reservedKey && id.GetKey() == "reserve_id" && hits == reservedHits && !held[which]:
					held[which] = true
					reserved++
				case id.GetKey() == "commit_id" && hits == committedHits && held[which]:
					delete(held, which)
					committed++
				default:
					strange = r.String()
				}
				return allow(r)
			})
			l := dialed(t, address, stepLoads(&target{}, keys)[2].payload)
			for range 2 { // the second run commits the reservations that the first one left open
				r, err := l.run(t.Context(), 50*time.Millisecond)
				if err != nil || r.answered == 0 {
					t.Fatal(r.answered, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if strange != "" {
				t.Errorf("a commit without a reservation, or another unexpected request: %s", strange)
			}
			if left := reserved - committed; committed == 0 || left < 0 || left > 2*4 {
				t.Errorf("%d reservations, %d commits: more are left than calls are in flight", reserved, committed)
			}
		})
	}
}

func TestCommitsThatFindNothingAreNoFigures(t *testing.T) {
	for _, c := range []struct {
		metrics string
		good    bool
	}{
		{"ratelimitd_reservations_total{result=\"committed\"} 1e+06\nratelimitd_reservations_total{result=\"unknown\"} 3\n", true},
		{"ratelimitd_reservations_total{result=\"committed\"} 1000\nratelimitd_reservations_total{result=\"unknown\"} 2\n", false},
		{"ratelimitd_reservations_total{result=\"committed\"} 0\n", false},
		{"", false},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.metrics)) }))
		if err := commitsMet(t.Context(), s.URL); (err == nil) != c.good {
			t.Errorf("%q: %v", c.metrics, err)
		}
		s.Close()
	}
}

func TestReportReservations(t *testing.T) {
	b, c := &target{id: "b", name: "memory"}, &target{id: "c", name: "Redis", redis: true}
	// 10 us for a call in memory; in Redis 10 us and 5 us there. A pair of calls counts once.
	loads := []*stepLoad{
		{target: b, name: "plain", calls: 1, rounds: []measurement{round(100_000, 1, 0), round(100_000, 1, 0), round(100_000, 4, 0)}},
		{target: b, name: "pair", calls: 2, rounds: []measurement{round(100_000, 1.1, 0), round(100_000, 1.2, 0), round(100_000, 4.4, 0)}},
		{target: c, name: "plain", calls: 1, rounds: []measurement{round(100_000, 1, 0.5), round(100_000, 1, 0.5), round(100_000, 1, 0.5)}},
		{target: c, name: "pair", calls: 2, rounds: []measurement{round(100_000, 1, 1), round(100_000, 2, 1), round(100_000, 1, 1)}},
	}
	var out strings.Builder
	o := &options{rounds: 3, duration: 60 * time.Millisecond, connections: 8, inFlight: 16, keys: 10}
	if err := reportReservations(&out, o, loads); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| b   | memory      | pair  | 24.00     |          | 2.20      | 2.20 to 2.40       |",
		"| c   | Redis       | pair  | 20.00     | 20.00    | 2.67      | 2.67 to 4.00       |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	loads[1].rounds = loads[1].rounds[1:]
	if err := reportReservations(&out, o, loads); err == nil {
		t.Error("missing rounds are not reported")
	}
}
