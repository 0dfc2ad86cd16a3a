package redis_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// reservable returns a limit under which hits can be reserved.
func reservable(l *descriptor.Limit, release bool) *descriptor.Limit {
	b := descriptor.DefaultReservations()
	b.Release = release
	c := *l
	c.Reservations = &b
	return &c
}

func reserve(id string) *backend.Reservation {
	h := &backend.Reservation{Op: backend.OpReserve, TTL: time.Minute.Microseconds()}
	copy(h.ID[:], id)
	return h
}

func commit(id string) *backend.Reservation {
	h := &backend.Reservation{Op: backend.OpCommit, Final: true}
	copy(h.ID[:], id)
	return h
}

func holding(key string, l *descriptor.Limit, hits int64, h *backend.Reservation) *backend.Request {
	r := take(key, l, hits)
	r.Takes[0].Reservation = h
	return r
}

func mustReserve(t testing.TB, s *redis.Store, key string, l *descriptor.Limit, hits int64, h *backend.Reservation) backend.Outcome {
	t.Helper()
	r := holding(key, l, hits, h)
	if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0]
}

// Reservations that are in flight together share calls with each other and with other takes, and count exactly.
func TestReservationsShareCalls(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(1000, descriptor.Year), false)
	mustReserve(t, s, "k", l, 1, reserve("first"))
	before := server.Calls(t, "evalsha")
	const callers = 200
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			id := fmt.Sprint("caller", i)
			if o := mustReserve(t, s, "k", l, 3, reserve(id)); !o.Allowed {
				t.Errorf("%+v", o)
			}
			mustTake(t, s, "k", l, 1)
			if h := commit(id); !mustReserve(t, s, "k", l, 2, h).Allowed || h.Result != backend.ReservationDone {
				t.Errorf("%+v", h)
			}
		})
	}
	wg.Wait()
	if o := mustTake(t, s, "k", l, 0); o.Used != 1+callers*3 {
		t.Errorf("%d in use", o.Used)
	}
	if n := server.Calls(t, "evalsha") - before; n > callers {
		t.Errorf("%d calls for %d requests", n, 3*callers)
	}
}

// A commit reports whether its reservation had expired by the clock of Redis.
func TestLateCommits(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	l := reservable(limit(1000, descriptor.Year), false)
	for _, late := range []bool{false, true} {
		h := reserve("a")
		if late {
			h.TTL = 1
		}
		mustReserve(t, s, "k", l, 3, h)
		if c := commit("a"); !mustReserve(t, s, "k", l, 2, c).Allowed || c.Result != backend.ReservationDone || c.Late != late {
			t.Errorf("%+v, want late %v", c, late)
		}
	}
}

// openLarge is openStore, but lists are large when they have more than two reservations.
func openLarge(t *testing.T) (*redis.Store, *redistest.Server) {
	t.Helper()
	s, server := openStore(t, redis.Options{})
	s.SetFewReservations(2)
	return s, server
}

// keysBeside returns the keys of a server except the key of the counter "k".
func keysBeside(t testing.TB, server *redistest.Server) []string {
	t.Helper()
	keys := server.Client(t).Keys(t.Context(), "*").Val()
	return slices.DeleteFunc(keys, func(k string) bool { return k == "k" })
}

// Reservations without a commit expire. A counter's keys of reservations expire soon after its last reservation.
func TestRecordsGo(t *testing.T) {
	for what, open := range map[string]func(*testing.T) (*redis.Store, *redistest.Server){
		"a small list": func(t *testing.T) (*redis.Store, *redistest.Server) { return openStore(t, redis.Options{}) },
		"a large list": openLarge,
	} {
		t.Run(what, func(t *testing.T) {
			s, server := open(t)
			client := server.Client(t)
			most := map[string]int{"a small list": 1, "a large list": 3}[what]
			l := reservable(limit(1000, descriptor.Year), false)
			mustReserve(t, s, "k", l, 3, reserve("a"))
			mustReserve(t, s, "k", l, 3, reserve("a"))
			h := reserve("a")
			h.TTL = 10 * time.Minute.Microseconds()
			mustReserve(t, s, "k", l, 3, h)
			if keys := keysBeside(t, server); len(keys) != most {
				t.Fatalf("%q", keys)
			}
			for _, k := range keysBeside(t, server) { // ten minutes, and as long again, and one minute to spare
				if ttl := client.PTTL(t.Context(), k).Val(); ttl < 19*time.Minute || ttl > 22*time.Minute {
					t.Errorf("%s lives another %v", k, ttl)
				}
			}
			for range 4 {
				mustReserve(t, s, "k", l, 0, commit("a"))
			}
			for _, k := range keysBeside(t, server) {
				if ttl := client.PTTL(t.Context(), k).Val(); k != redis.ReservationKeys("k")[0] || ttl <= 0 || ttl > 22*time.Minute {
					t.Errorf("left: %q for %v", k, ttl)
				}
			}
			if o := mustTake(t, s, "k", l, 0); o.Used != 0 {
				t.Errorf("%+v", o)
			}
			// With on_expire: release, the reservation must last as long as the counter, because the next call may come late and
			// has to release it.
			for _, id := range []string{"b", "c", "d"} {
				mustReserve(t, s, "k", reservable(l, true), 3, reserve(id))
			}
			counter := client.PTTL(t.Context(), "k").Val()
			for _, k := range keysBeside(t, server) {
				if ttl := client.PTTL(t.Context(), k).Val(); ttl < counter {
					t.Errorf("%s lives another %v, the counter %v", k, ttl, counter)
				}
			}
			if err := s.Reset(t.Context(), []backend.Counter{{Key: []byte("k"), Limit: l}}); err != nil {
				t.Fatal(err)
			}
			if keys := client.Keys(t.Context(), "*").Val(); len(keys) > 0 {
				t.Errorf("left by a reset: %q", keys)
			}
		})
	}
}

// A reservation and its commit each write the list once, and ask Redis for nothing that is known already.
func TestReservationsAskForLittle(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(1000, descriptor.Year), false)
	commands := []string{"mget", "get", "set", "setrange", "incrby", "pttl", "pexpire", "del"}
	// the first makes the list and the counter
	for round, calls := range [][]int{{2, 0, 2, 1, 1, 0, 0, 0}, {2, 0, 0, 2, 2, 0, 0, 0}} {
		var before []int
		for _, c := range commands {
			before = append(before, server.Calls(t, c))
		}
		mustReserve(t, s, "k", l, 3, reserve("a"))
		if h := commit("a"); !mustReserve(t, s, "k", l, 2, h).Allowed || h.Result != backend.ReservationDone {
			t.Fatalf("%+v", h)
		}
		for i, want := range calls {
			if n := server.Calls(t, commands[i]) - before[i]; n != want {
				t.Errorf("round %d: %d calls of %s, want %d", round, n, commands[i], want)
			}
		}
	}
}

// Redis may evict one of the keys of a large list, and a key may be somebody else's. The next reservation makes all
// good again: it can be committed, and no key stays forever.
func TestOneKeyOfReservationsIsLost(t *testing.T) {
	for n, name := range []string{"the string", "the hash", "the set"} {
		for _, foreign := range []bool{false, true} {
			s, server := openLarge(t)
			client := server.Client(t)
			l := reservable(limit(1000, descriptor.Year), false)
			for _, id := range []string{"1", "2", "3", "4"} {
				mustReserve(t, s, "k", l, 3, reserve(id))
			}
			key := redis.ReservationKeys("k")[n]
			err := client.Del(t.Context(), key).Err()
			if foreign {
				err = errors.Join(err, client.LPush(t.Context(), key, "x").Err())
			}
			if err != nil {
				t.Fatal(err)
			}
			if o := mustReserve(t, s, "k", l, 5, reserve("short")); !o.Allowed {
				t.Fatalf("%s, foreign %v: %+v", name, foreign, o)
			}
			for _, k := range keysBeside(t, server) {
				if ttl := client.PTTL(t.Context(), k).Val(); ttl <= 0 {
					t.Errorf("%s, foreign %v: %s stays for ever: %v", name, foreign, k, ttl)
				}
			}
			h := commit("short")
			mustReserve(t, s, "k", l, 1, h)
			if o := mustTake(t, s, "k", l, 0); h.Result != backend.ReservationDone || o.Used != 4*3+1 {
				t.Errorf("%s, foreign %v: result %v, %d in use", name, foreign, h.Result, o.Used)
			}
		}
	}
}

// A list that becomes large and small again keeps all its reservations.
func TestBooksGrowAndShrink(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(1000, descriptor.Year), false)
	const most = 70
	large := func() bool { return server.Client(t).Exists(t.Context(), redis.ReservationKeys("k")[1:]...).Val() == 2 }
	for i := range most {
		mustReserve(t, s, "k", l, 2, reserve(fmt.Sprint(i)))
		if large() != (i >= 64) {
			t.Fatalf("large with %d reservations: %v", i+1, large())
		}
	}
	for i := range most {
		if h := commit(fmt.Sprint(i)); mustReserve(t, s, "k", l, 1, h).Used != 2*most-int64(i)-1 || h.Result != backend.ReservationDone {
			t.Fatalf("%d: %+v", i, h)
		}
	}
	if large() {
		t.Error("an empty list is large")
	}
}

// A holder that dies leaves its reservation behind. The reservation's time to live ends it, by Redis' own clock.
func TestAHolderDies(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	l := reservable(limit(10, descriptor.Year), true)
	h := reserve("a")
	h.TTL = 1 // a microsecond
	mustReserve(t, s, "k", l, 8, h)
	if o := mustTake(t, s, "k", l, 10); !o.Allowed {
		t.Errorf("%+v", o)
	}
}

// Redis loses scripts and data.
func TestReservationsOfARedisThatStartsAgain(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(10, descriptor.Year), false)
	mustReserve(t, s, "k", l, 8, reserve("a"))
	if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if o := mustReserve(t, s, "k", l, 3, commit("a")); o.Used != 3 {
		t.Errorf("after the scripts were lost: %+v", o)
	}
	mustReserve(t, s, "k", l, 4, reserve("b"))
	server.Kill(t)
	if err := backend.Await(t.Context(), s, time.Time{}, holding("k", l, 1, commit("b"))); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("without Redis: %v", err)
	}
	server.Restart(t)
	h := commit("b")
	redistest.Eventually(t, "Redis answers", func(ctx context.Context) error {
		return backend.Await(ctx, s, time.Time{}, holding("k", l, 5, h))
	})
	if o := mustTake(t, s, "k", l, 0); h.Result != backend.ReservationUnknown || o.Used != 0 {
		t.Errorf("after the data was lost: %+v, %+v", h, o)
	}
}

// Without memory nothing can be reserved, but reservations can end: that frees memory.
func TestReservationsWithoutMemory(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(10, descriptor.Year), false)
	mustReserve(t, s, "k", l, 5, reserve("a"))
	mustReserve(t, s, "k", l, 2, reserve("b"))
	if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]*backend.Request{
		"a reservation": holding("k", l, 1, reserve("c")),
		"a report":      holding("k", l, 9, &backend.Reservation{ID: reserve("a").ID, Op: backend.OpCommit}),
	} {
		if err := backend.Await(t.Context(), s, time.Time{}, r); !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%s: %v, %+v", what, err, r.Outcomes[0])
		}
	}
	if r := holding("k", l, 4, reserve("c")); backend.Await(t.Context(), s, time.Time{}, r) != nil || r.Outcomes[0].Allowed {
		t.Errorf("a reservation that does not fit: %+v", r.Outcomes[0])
	}
	if o := mustReserve(t, s, "k", l, 6, commit("a")); o.Used != 8 {
		t.Errorf("a commit: %+v", o)
	}
	if o := mustReserve(t, s, "k", l, 0, commit("b")); o.Used != 6 {
		t.Errorf("a commit: %+v", o)
	}
}

// The rights that docs/reference/redis-keys.md names are enough, and none can be left out.
func TestRightsForReservations(t *testing.T) {
	rights := strings.Fields("+setrange +hget +hgetall +hset +hdel +zadd +zrem +zcard +zcount +zrangebyscore +pexpire")
	try := func(rights []string) error {
		args := append(strings.Fields("--user default on nopass ~* -@all +evalsha +eval +get +mget +set +incrby +del +pttl +time +ping"), rights...)
		s := redis.New(redis.Options{Client: dial(t, redistest.Start(t, args...)), Timeout: patience, CallerClock: true})
		s.SetFewReservations(2)
		l := reservable(limit(10, descriptor.Year), true)
		l.Reservations.MaxOutstanding = 3
		for i, reservation := range []*backend.Reservation{reserve("a"), commit("a"), reserve("b"), reserve("c"), reserve("d"), reserve("e"), commit("e"), commit("d"), reserve("f"), reserve("g")} {
			if err := backend.Await(t.Context(), s, time.Unix(int64(1e9+20*i), 0), holding("k", l, 1, reservation)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := try(rights); err != nil {
		t.Error(err)
	}
	for i, right := range rights {
		if try(slices.Delete(slices.Clone(rights), i, i+1)) == nil {
			t.Errorf("%s is not needed", right)
		}
	}
}

// A request with very many reservations is one like any other.
func TestManyReservationsInOneRequest(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	const many = 600
	l := reservable(limit(10, descriptor.Year), false)
	last := many - 1
	mustTake(t, s, fmt.Sprint("k", last), l, 6)
	for _, c := range []struct{ least, granted int64 }{{0, 0}, {2, 4}} {
		r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, many)}
		for i := range many {
			h := reserve("a")
			h.Least = c.least
			r.Takes = append(r.Takes, backend.Take{Key: fmt.Append(nil, "k", i), Limit: l, Hits: 7, Member: i, Reservation: h})
		}
		if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 254, 255, 256, 511, 512, last} {
			used := c.granted
			if i == last {
				used += 6
			}
			if h, o := r.Takes[i].Reservation, mustTake(t, s, fmt.Sprint("k", i), l, 0); h.Granted != c.granted || o.Used != used {
				t.Errorf("at least %d, the counter %d: %d granted, %d in use, want %d and %d", c.least, i, h.Granted, o.Used, c.granted, used)
			}
		}
	}
}

// startAll sends requests in one call, and returns their errors.
func startAll(t *testing.T, s *redis.Store, requests ...*backend.Request) []error {
	t.Helper()
	var batch backend.Batch
	errs, answered := make([]error, len(requests)), make(chan struct{}, len(requests))
	for i, r := range requests {
		if settled, err := s.Start(t.Context(), time.Time{}, &batch, r, func(err error) { errs[i] = err; answered <- struct{}{} }); settled {
			t.Fatal(err)
		}
	}
	batch.Send()
	for range requests {
		<-answered
	}
	return errs
}

// A request that cannot be sent fails alone.
func TestARequestThatCannotBeSentFailsAlone(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	l := limit(10, descriptor.Year)
	uncompiled := take("b", &descriptor.Limit{Requests: 5, Window: l.Window, Algorithm: descriptor.TokenBucket}, 1)
	for round := range 2 {
		errs := startAll(t, s, take("a", l, 1), uncompiled, take("c", l, 1))
		if errs[0] != nil || errs[1] == nil || errs[2] != nil {
			t.Errorf("round %d: %v", round, errs)
		}
	}
	if a, c := mustTake(t, s, "a", l, 0), mustTake(t, s, "c", l, 0); a.Used != 2 || c.Used != 2 {
		t.Errorf("%d and %d in use", a.Used, c.Used)
	}
}

// Users without the rights for reservations cannot reserve. Other requests of the same call still succeed, unless Redis
// rejects a command when the counters are written already: then nothing is sent again, because it would count twice.
func TestReservationsWithoutRights(t *testing.T) {
	for _, c := range []struct {
		rights  string
		release bool
		plain   int64 // hits of the others that count
		fails   bool  // they have no answer
	}{
		{"", false, 3, false},
		{"+setrange", true, 3, true}, // pexpire is denied, after the counters are written
	} {
		args := append(strings.Fields("--user default on nopass ~* -@all +evalsha +eval +get +mget +set +incrby +del +pttl +time +ping"), strings.Fields(c.rights)...)
		s := redis.New(redis.Options{Client: dial(t, redistest.Start(t, args...)), Timeout: patience})
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		l := limit(10, descriptor.Year)
		if !c.release {
			// this makes the list, which needs no additional right
			mustReserve(t, s, "held", reservable(l, false), 1, reserve("first"))
		}
		errs := startAll(t, s, take("a", l, 3), holding("held", reservable(l, c.release), 2, reserve("x")), take("b", l, 3),
			holding("held", reservable(l, c.release), 2, reserve("y")))
		if errs[1] == nil || !errors.Is(errs[3], backend.ErrUnavailable) || (errs[0] != nil) != c.fails || (errs[2] != nil) != c.fails {
			t.Errorf("%q: %v", c.rights, errs)
		}
		for _, k := range []string{"a", "b"} {
			if o := mustTake(t, s, k, l, 0); o.Used != c.plain {
				t.Errorf("%q: %s: %d in use, want %d", c.rights, k, o.Used, c.plain)
			}
		}
	}
}

// Foreign values under the keys of reservations are ignored.
func TestForeignRecords(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := reservable(limit(10, descriptor.Year), false)
	keys := redis.ReservationKeys("k")
	for _, foreign := range [][]string{keys[:1], keys[1:], keys} {
		mustReserve(t, s, "k", l, 4, reserve("a"))
		for _, k := range foreign {
			if err := server.Client(t).Set(t.Context(), k, "foreign", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if h := reserve("b"); mustReserve(t, s, "k", l, 1, h).Used != 5 || h.Granted != 1 {
			t.Errorf("%q: %+v", foreign, h)
		}
		if o := mustReserve(t, s, "k", l, 0, commit("b")); o.Used != 4 {
			t.Errorf("%q: %+v", foreign, o)
		}
		if err := s.Reset(t.Context(), []backend.Counter{{Key: []byte("k"), Limit: l}}); err != nil {
			t.Fatal(err)
		}
	}
}

// A client that chooses the bytes of a key cannot put the reservations of its counter into another slot than the
// counter.
func TestRecordsAreInTheSlotOfTheirCounter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringOf(rapid.SampledFrom([]rune("{}ab:0"))).Draw(t, "key")
		for _, record := range redis.ReservationKeys(key) {
			if redis.SlotOf(record) != redis.SlotOf(key) {
				t.Fatalf("%q is in slot %d, %q in slot %d", key, redis.SlotOf(key), record, redis.SlotOf(record))
			}
		}
	})
	all := map[string]string{}
	for _, key := range []string{"", "a", "{a}", "{a}a", "a{a}", "}", "a}", "{}a", "{}a}", "{a", "{{a}", "}{a}"} {
		for _, record := range append(redis.ReservationKeys(key), key) {
			if other, taken := all[record]; taken {
				t.Errorf("%q and %q share %q", key, other, record)
			}
			all[record] = key
		}
	}
}

// Reservations on counters of several slots are made everywhere or nowhere.
func TestReservationsOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	s := redis.New(redis.Options{Client: dialCluster(t, cluster), Timeout: 10 * time.Second})
	l := reservable(limit(100, descriptor.Year), false)
	keys := []string{"a", "b}", "{}c", "{d}d", "e"}
	group := func(hits int64, reservation func() *backend.Reservation) *backend.Request {
		r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, len(keys))}
		for i, k := range keys {
			r.Takes = append(r.Takes, backend.Take{Key: []byte(k), Limit: l, Hits: hits, Member: i, Reservation: reservation()})
		}
		if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	check := func(what string, want ...int64) {
		t.Helper()
		for i, k := range keys {
			if o := mustTake(t, s, k, l, 0); o.Used != want[i] {
				t.Errorf("%s: %s: %d in use, want %d", what, k, o.Used, want[i])
			}
		}
	}
	mustTake(t, s, "e", l, 50)
	if r := group(60, func() *backend.Reservation { return reserve("x") }); !backend.Denied(r.Takes, r.Outcomes) {
		t.Errorf("%+v", r.Outcomes)
	}
	check("denied in one slot", 0, 0, 0, 0, 50)
	r := group(60, func() *backend.Reservation { h := reserve("y"); h.Least = 20; return h })
	for i := range r.Takes {
		if h := r.Takes[i].Reservation; h.Granted != 50 {
			t.Errorf("%s: %+v", keys[i], h)
		}
	}
	check("a smaller grant", 50, 50, 50, 50, 100)
	group(7, func() *backend.Reservation { return commit("y") })
	check("committed", 7, 7, 7, 7, 57)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			k, id := keys[i%len(keys)], fmt.Sprint(i)
			mustReserve(t, s, k, l, 2, reserve(id))
			mustReserve(t, s, k, l, 1, commit(id))
		})
	}
	wg.Wait()
	check("concurrent", 17, 17, 17, 17, 67)
}

// The script settles reservations like the memory store, step by step, under every algorithm.
func TestReservationsAsInMemory(t *testing.T) {
	client := dial(t, redistest.Start(t))
	large := redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true})
	large.SetFewReservations(2)
	stores := []backend.Store{memory.New(memory.Options{}), redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true}), large}
	limits := []string{
		"9/1m", "9/1m,first_hit", "9/1d,in=Asia/Seoul", "9/1m,sliding", "9/1m,sliding,precision=4", "9/1m,log", "9/1h,log", "9/1m,token", "7/1m,token,burst=20",
		"9/1m,places", "9/1h,places", "4/1m,token,interval,burst=9", "4/1m,token,interval,burst=9,first_hit",
	}
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		now := int64(1_800_000_000_000_000)
		l := reservable(backendtest.Limit(rapid.SampledFrom(limits).Draw(t, "limit")), rapid.Bool().Draw(t, "release"))
		l.Reservations.MaxOutstanding = rapid.IntRange(1, 6).Draw(t, "most")
		ids := []string{"a", "b", "c"}
		for step := range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 20_000_000), rapid.Int64Range(0, 100_000_000)).Draw(t, "pause")
			makeTake := rapid.Custom(func(t *rapid.T) backend.Take {
				take := backend.Take{Key: fmt.Appendf(nil, "%d|%d", run, rapid.IntRange(0, 1).Draw(t, "key")), Limit: l, Hits: rapid.Int64Range(0, 12).Draw(t, "hits")}
				op := rapid.IntRange(0, 4).Draw(t, "op")
				if op == 0 {
					take.Hits++ // a look at a new counter, in a group, need not see the hits of commits
					return take
				}
				h := &backend.Reservation{
					Op: min(backend.ReservationOp(op), backend.OpExtend), Final: rapid.Bool().Draw(t, "final"), ChargeUnknown: rapid.IntRange(0, 3).Draw(t, "unknown") == 0,
					TTL: rapid.SampledFrom([]int64{1, 10, 60, 200}).Draw(t, "ttl") * 1_000_000,
				}
				if op == 4 {
					h.Op = backend.OpReserve
				}
				if h.Op == backend.OpReserve {
					h.Least = min(take.Hits, rapid.SampledFrom([]int64{0, 0, 1, 5}).Draw(t, "least"))
				}
				copy(h.ID[:], rapid.SampledFrom(ids).Draw(t, "id"))
				take.Reservation = h
				return take
			})
			takes := rapid.SliceOfN(makeTake, 1, 3).Draw(t, "takes")
			for i := range takes {
				takes[i].Member = i
				if h := takes[i].Reservation; h != nil {
					// distinct ends, because any of several reservations that expire at the same time may be dropped first
					h.TTL += int64(3*step + i)
				}
			}
			together := rapid.Bool().Draw(t, "together")
			if together { // takes of one counter are judged one by one, so the limiter merges those of a group
				adds := make(map[string]bool)
				takes = slices.DeleteFunc(takes, func(take backend.Take) bool {
					if take.Reservation != nil && take.Reservation.Op != backend.OpReserve {
						return false
					}
					again := adds[string(take.Key)]
					adds[string(take.Key)] = true
					return again
				})
			}
			answers := make([]string, len(stores))
			for n, s := range stores {
				r := &backend.Request{Takes: slices.Clone(takes), Outcomes: make([]backend.Outcome, len(takes)), Together: together}
				for i := range r.Takes {
					r.Takes[i].Key = fmt.Appendf(nil, "%d|%s", n, r.Takes[i].Key)
					if h := r.Takes[i].Reservation; h != nil {
						c := *h
						r.Takes[i].Reservation = &c
					}
				}
				if err := backend.Await(t.Context(), s, time.UnixMicro(now), r); err != nil {
					t.Fatal(err)
				}
				for i := range r.Takes {
					answers[n] += fmt.Sprintf("\n%+v", r.Outcomes[i])
					if h := r.Takes[i].Reservation; h != nil {
						answers[n] += fmt.Sprintf(" result %d granted %d expires %d", h.Result, h.Granted, h.Expires)
					}
				}
			}
			if answers[0] != answers[1] || answers[0] != answers[2] {
				t.Fatalf("step %d: memory:%s\nRedis:%s\nRedis, large lists:%s", step, answers[0], answers[1], answers[2])
			}
		}
	})
}

// When a call deletes a list and makes it again, the new list expires with the new reservations.
func TestReservationsBeginAnewInOneCall(t *testing.T) {
	s, server := openStore(t, redis.Options{CallerClock: true})
	client := server.Client(t)
	l := reservable(limit(1000, descriptor.Minute), true)
	step := func(after time.Duration, r *backend.Request) {
		t.Helper()
		if err := backend.Await(t.Context(), s, time.Unix(1_800_000_000, 0).Add(after), r); err != nil {
			t.Fatal(err)
		}
		for i := range r.Takes {
			if h := r.Takes[i].Reservation; h != nil && h.Result != backend.ReservationDone {
				t.Fatalf("%+v", h)
			}
		}
	}
	long := func(id string, ttl time.Duration) *backend.Reservation {
		h := reserve(id)
		h.TTL = ttl.Microseconds()
		return h
	}
	step(0, holding("k", l, 1, long("a", 10*time.Minute)))
	step(0, holding("k", l, 1, commit("a")))
	for i := range 11 {
		step(0, holding("k", l, 1, reserve(fmt.Sprint(i))))
	}
	// All have expired. Two steps in one call settle them, and reserve.
	two := holding("k", l, 1, reserve("b"))
	two.Takes = append(two.Takes, holding("k", l, 1, reserve("c")).Takes...)
	two.Outcomes = make([]backend.Outcome, 2)
	step(3*time.Minute, two)
	step(3*time.Minute, holding("k", l, 1, long("d", 9*time.Minute)))
	if ttl := client.PTTL(t.Context(), redis.ReservationKeys("k")[0]).Val(); ttl < 9*time.Minute {
		t.Errorf("a reservation of nine minutes lives another %v", ttl)
	}
}
