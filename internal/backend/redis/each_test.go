package redis_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Requests that share a call, each with a different counter, get the answers that they would get alone, and leave the
// same values in Redis.
func TestSharedCallsAnswerAsCallsAlone(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience, CallerClock: true})
	limits := everyShape(5)
	names := slices.Sorted(maps.Keys(limits))
	r := rand.New(rand.NewPCG(1, 1))
	now, denied := time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC), 0
	for range rapidtest.Cases(100, 400) {
		now = now.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
		if r.IntN(40) == 0 {
			now = now.Add(-time.Hour) // the clock is set back
		}
		var together, alone []*backend.Request
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		// few algorithms per call: otherwise those that may ask again would always decide the script
		few := names[:1+r.IntN(3)]
		for _, k := range r.Perm(30)[:2+r.IntN(28)] {
			name := few[k%len(few)]
			one := backend.Take{Limit: limits[name], Hits: int64(r.IntN(4)), CountDenied: r.IntN(2) == 0}
			if r.IntN(10) == 0 {
				one.Hits = -1
			}
			for range 1 + r.IntN(3)/2 { // some ask twice
				together, alone = append(together, asked(one, "together", name, k)), append(alone, asked(one, "alone", name, k))
			}
		}
		if err := s.TakeAll(t.Context(), now, together...); err != nil {
			t.Fatal(err)
		}
		for i, request := range alone {
			if err := backend.Await(t.Context(), s, now, request); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(request.Outcomes[0], together[i].Outcomes[0]); diff != "" {
				t.Fatalf("%s, %d hits (- alone, + in one call):\n%s", together[i].Takes[0].Key, request.Takes[0].Hits, diff)
			}
			if !request.Outcomes[0].Allowed {
				denied++
			}
		}
		for i, request := range alone {
			one, other := string(request.Takes[0].Key), string(together[i].Takes[0].Key)
			if a, b := client.Dump(t.Context(), one).Val(), client.Dump(t.Context(), other).Val(); a != b {
				t.Fatalf("%s: %q alone, %q in one call", other, a, b)
			}
			if a, b := client.PTTL(t.Context(), one).Val(), client.PTTL(t.Context(), other).Val(); (a - b).Abs() > time.Minute {
				t.Fatalf("%s: kept for %s alone, for %s in one call", other, a, b)
			}
		}
	}
	if denied < 200 {
		t.Errorf("only %d requests were denied", denied)
	}
}

func asked(take backend.Take, side, name string, k int) *backend.Request {
	take.Key = fmt.Appendf(nil, "%s %s %d", side, name, k)
	return &backend.Request{Takes: []backend.Take{take}, Outcomes: make([]backend.Outcome, 1)}
}
