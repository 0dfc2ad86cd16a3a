package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// penalised returns a request of one take that a penalty guards.
func penalised(key string, l *descriptor.Limit, hits int64, lasts time.Duration) *backend.Request {
	return &backend.Request{Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
		{Key: descriptor.AppendPenaltyKey(nil, []byte(key), false), Limit: descriptor.NewPenalty(lasts), Guards: true},
		{Key: []byte(key), Limit: l, Hits: hits},
	}}
}

func mustPenalise(t *testing.T, s backend.Store, r *backend.Request) (penalty, o backend.Outcome) {
	t.Helper()
	if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0], r.Outcomes[1]
}

// The counter has the key and the value that it has without a penalty, so that other versions count with this one. The
// penalty has a key next to it, which expires when the penalty ends. A foreign value in that key is not a penalty.
func TestPenaltyIsBesideTheCounter(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	client, l := server.Client(t), limit(3, descriptor.Year)
	key := redis.PenaltyKey("k", false)
	mustTake(t, s, "plain", l, 3)
	if p, o := mustPenalise(t, s, penalised("k", l, 3, time.Hour)); !p.Allowed || !o.Allowed || client.Exists(t.Context(), key).Val() != 0 {
		t.Fatalf("below the limit: %+v, %+v", p, o)
	}
	if a, b := client.Get(t.Context(), "plain").Val(), client.Get(t.Context(), "k").Val(); a != b {
		t.Errorf("the counter is %q, without a penalty %q", b, a)
	}
	if p, o := mustPenalise(t, s, penalised("k", l, 1, time.Hour)); p.Allowed || o.Allowed || p.Before != 0 || p.RetryAfter != time.Hour {
		t.Errorf("above the limit: %+v, %+v", p, o)
	}
	if left := client.PTTL(t.Context(), key).Val(); key != "{k}:penalty" || left <= 59*time.Minute || left > time.Hour+time.Millisecond {
		t.Errorf("the key %q lives for %v", key, left)
	}
	mustTake(t, s, "k", l, -2) // another version has no penalties
	if o := mustTake(t, s, "k", l, 1); !o.Allowed {
		t.Errorf("another version: %+v", o)
	}
	if p, o := mustPenalise(t, s, penalised("k", l, 1, time.Hour)); p.Allowed || p.Before != 1 || !o.Allowed || o.Used != 2 {
		t.Errorf("during the penalty: %+v, %+v", p, o)
	}
	for _, foreign := range []string{"", "x", "99999999999999999999", "9007199254740991", "-5", "1"} {
		client.Set(t.Context(), key, foreign, 0)
		if p, o := mustPenalise(t, s, penalised("k", l, 0, time.Hour)); !p.Allowed || !o.Allowed {
			t.Errorf("a penalty of %q: %+v, %+v", foreign, p, o)
		}
	}
	client.Del(t.Context(), key)
	client.HSet(t.Context(), key, "a", "b")
	if p, _ := mustPenalise(t, s, penalised("k", l, 5, time.Hour)); p.Allowed || p.Before != 0 {
		t.Errorf("instead of a hash: %+v", p)
	}
	if kind := client.Type(t.Context(), key).Val(); kind != "string" {
		t.Errorf("the penalty is a %s", kind)
	}
}

// A counter and its penalty are in one slot of a cluster, for every key.
func TestPenaltyIsInTheSlotOfItsCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(rapid.StringMatching(`[ab{}|:]{1,12}`), rapid.StringN(1, 30, 60)).Draw(t, "key")
		for _, shadow := range []bool{false, true} {
			penalty := redis.PenaltyKey(key, shadow)
			if redis.SlotOf(penalty) != redis.SlotOf(key) {
				t.Fatalf("%q is in the slot %d, %q in %d", key, redis.SlotOf(key), penalty, redis.SlotOf(penalty))
			}
			if penalty == key || penalty == redis.PenaltyKey(key, !shadow) {
				t.Fatalf("%q is not a key of its own", penalty)
			}
		}
	})
}

// If several requests run at the same time, one starts the penalty, and no more pass than the limit allows.
func TestPenaltyBeginsOnce(t *testing.T) {
	first, server := openStore(t, redis.Options{})
	second := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(40, descriptor.Year)
	var began, passed, denied atomic.Int64
	var wg sync.WaitGroup
	for g := range 20 {
		store := first
		if g%2 == 1 {
			store = second
		}
		wg.Go(func() {
			for range 10 {
				r := penalised("k", l, 1, time.Hour)
				if err := backend.Await(context.Background(), store, time.Time{}, r); err != nil {
					t.Error(err)
					return
				}
				switch p, o := &r.Outcomes[0], &r.Outcomes[1]; {
				case p.Used > p.Before:
					began.Add(1)
				case p.Allowed && o.Allowed:
					passed.Add(1)
				default:
					denied.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if began.Load() != 1 || passed.Load() != 40 || denied.Load() != 159 {
		t.Errorf("%d began, %d passed, %d were denied", began.Load(), passed.Load(), denied.Load())
	}
}

// A limit per second with a penalty is counted next to its penalties.
func TestPenaltyOfALimitPerSecond(t *testing.T) {
	seconds, server := openStore(t, redis.Options{})
	others, other := openStore(t, redis.Options{})
	pair := &redis.Pair{PerSecond: seconds, Other: others}
	l := limit(1, descriptor.Second)
	l.Penalty = descriptor.NewPenalty(time.Second)
	for i := range 3 {
		r := penalised("k", l, 2, time.Second)
		r.Takes[0].Limit = l.Penalty
		if p, _ := mustPenalise(t, pair, r); p.Allowed {
			t.Errorf("request %d: %+v", i, p)
		}
	}
	if a, b := server.Client(t).DBSize(t.Context()).Val(), other.Client(t).DBSize(t.Context()).Val(); a != 0 || b == 0 {
		t.Errorf("%d keys in the Redis for limits per second, %d in the other one", a, b)
	}
}

// All equal requests of a call are decided in turn.
func TestPenaltiesOfOneCall(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	l := limit(2, descriptor.Year)
	var all []*backend.Request
	for range 6 {
		all = append(all, penalised("k", l, 1, time.Hour))
	}
	all = append(all, penalised("other", l, 1, time.Hour))
	if err := s.TakeAll(t.Context(), time.Time{}, all...); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range all {
		got += fmt.Sprintf("%v %v %d, ", r.Outcomes[0].Allowed, r.Outcomes[1].Allowed, r.Outcomes[0].Before)
	}
	if want := "true true 0, true true 0, false false 0, false false 1, false false 1, false false 1, true true 0, "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// When Redis has no memory left, no penalty starts. A request that only such a penalty would deny has no answer.
func TestNoPenaltyWithoutMemory(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := limit(3, descriptor.Year)
	mustTake(t, s, "k", l, 2)
	mustTake(t, s, "other", l, 3)
	if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if p, o := mustPenalise(t, s, penalised("other", l, 1, time.Hour)); !p.Allowed || o.Allowed || o.Failed {
		t.Errorf("alone: %+v, penalty %+v", o, p)
	}
	requests := []*backend.Request{penalised("k", l, 5, time.Hour), penalised("k", l, 1, time.Hour), penalised("other", l, 1, time.Hour)}
	if err := s.TakeAll(t.Context(), time.Time{}, requests...); !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
	for i, failed := range []bool{false, true, false} {
		p, o := requests[i].Outcomes[0], requests[i].Outcomes[1]
		if o.Allowed || o.Failed != failed || p.Failed != failed || p.Allowed == failed {
			t.Errorf("request %d: %+v, penalty %+v", i, o, p)
		}
	}
}
