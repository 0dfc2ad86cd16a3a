package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// testRequest stands for Envoy: a request, and the module's calls on it.
type testRequest struct {
	headers  map[string][]string
	address  string
	cluster  string
	metadata map[Source]map[string]any // texts and numbers, by "namespace/key"

	counted []Counter
	replied uint32
	waker   *testWaker
}

func (r *testRequest) Header(name string, i int) (string, int) {
	if values := r.headers[name]; i < len(values) {
		return values[i], len(values)
	}
	return "", 0
}
func (r *testRequest) RemoteAddress() (string, bool) { return r.address, r.address != "" }
func (r *testRequest) Cluster() (string, bool)       { return r.cluster, r.cluster != "" }
func (r *testRequest) Metadata(from Source, space, key string) (string, bool) {
	text, ok := r.metadata[from][space+"/"+key].(string)
	return text, ok
}
func (r *testRequest) MetadataNumber(from Source, space, key string) (float64, bool) {
	n, ok := r.metadata[from][space+"/"+key].(float64)
	return n, ok
}
func (r *testRequest) Count(c Counter)                                   { r.counted = append(r.counted, c) }
func (*testRequest) SetMetadata(string, []byte)                          {}
func (*testRequest) Flag(string)                                         {}
func (*testRequest) AddToRequest([]limiter.Header)                       {}
func (*testRequest) AddToResponse([]limiter.Header)                      {}
func (r *testRequest) Reply(status uint32, _ []limiter.Header, _ string) { r.replied = status }
func (r *testRequest) Waker() Waker {
	r.waker = &testWaker{wakes: make(chan struct{})}
	return r.waker
}

type testWaker struct {
	woken, freed atomic.Int32
	late         atomic.Bool // whether Wake was called after Free
	wakes        chan struct{}
}

func (w *testWaker) Wake() {
	w.late.Store(w.late.Load() || w.freed.Load() > 0)
	if w.woken.Add(1) == 1 {
		close(w.wakes)
	}
}

func (w *testWaker) Free() { w.freed.Add(1) }

// testHost stands for Envoy when it loads a configuration.
type testHost struct{ validating bool }

func (testHost) Concurrency() int   { return 1 }
func (h testHost) Validating() bool { return h.validating }
func (testHost) DefineCounter(name string) (Counter, error) {
	if strings.Contains(name, "frozen") {
		return 0, errors.New("frozen")
	}
	return Counter(len(name)), nil
}

// The answer, the deadline and the end of a request come at the same moment, in any order: the request is woken once at
// most, and never after its waker has been freed, which happens once.
func TestExactlyOneEndsAPause(t *testing.T) {
	for i := range 20_000 {
		f := &Filter{timeout: time.Hour, settings: answerSettings{status: 429}}
		c, r := &Call{filter: f}, new(testRequest)
		if i%7 == 0 {
			c.answer(nil) // before the hook has returned
		}
		if _, result := c.pause(r, time.Now()); (result == Pause) == (i%7 == 0) {
			t.Fatalf("the hook returns %v", result)
		}
		if r.waker == nil {
			continue
		}
		var all sync.WaitGroup
		for _, one := range rand.Perm(3) {
			all.Go([]func(){func() { c.answer(nil) }, c.expire, func() {
				if rand.IntN(2) == 0 {
					c.Leave()
				}
			}}[one])
		}
		all.Wait()
		result := c.Resume(r)
		c.Leave()
		if r.waker.woken.Load() > 1 || r.waker.freed.Load() != 1 || r.waker.late.Load() {
			t.Fatalf("woken %d times, freed %d times, woken after that: %v; resumed with %v",
				r.waker.woken.Load(), r.waker.freed.Load(), r.waker.late.Load(), result)
		}
	}
}

// Requests wait for a Redis, and some leave before it answers. Each of the others is resumed, and exactly the limit
// passes.
func TestPausedRequests(t *testing.T) {
	const limit, workers, each = 500, 8, 100
	rule := fmt.Sprintf("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: %d}}]", limit)
	text := `{"domain": "d", "rules": "` + servicetest.RulesOf(t, rule) + `", "redis_url": "` + redistest.Start(t).Addr + `", "timeout": "30s",
		"failure_mode_deny": true, "rate_limits": [{"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]}]}`
	servicetest.NotAtMidnight()
	f, err := Open([]byte(text), testHost{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(true)
	var all sync.WaitGroup
	var passed, left atomic.Int32
	for range workers {
		all.Go(func() {
			for i := range each {
				r := &testRequest{cluster: "upstream", headers: map[string][]string{"x-user": {"ann"}}}
				c, result := f.Begin(r, nil)
				if result == Pause && i%10 == 0 {
					c.Leave()
					left.Add(1)
					continue
				}
				if result == Pause {
					<-r.waker.wakes
					result = c.Resume(r)
				}
				if result == Continue {
					passed.Add(1)
				} else if r.replied != 429 {
					t.Errorf("a request got %d", r.replied)
				}
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n > limit || n < limit-left.Load() {
		t.Errorf("%d requests passed and %d left, of %d with a limit of %d", n, left.Load(), workers*each, limit)
	}
}

// Filters with the same store share its counters, even if their other settings differ. An engine exists until its last
// filter is closed.
func TestFiltersShareTheirCounters(t *testing.T) {
	dir := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: generic_key, rate_limit: {unit: day, requests_per_unit: 2}}]")
	servicetest.NotAtMidnight()
	open := func(more string) *Filter {
		t.Helper()
		text := `{"domain": "d", "rules": "` + dir + `", "rate_limits": [{"actions": [{"generic_key": {"descriptor_value": "a"}}]}]` + more + `}`
		f, err := Open([]byte(text), testHost{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	ask := func(f *Filter) Result {
		_, result := f.Begin(&testRequest{cluster: "upstream"}, nil)
		return result
	}
	first := open("")
	second := open(`, "timeout": "1s", "response_headers": ["ietf"]`)
	if first.engine == second.engine || first.engine.store != second.engine.store {
		t.Error("filters with other answers do not share just the store")
	}
	if ask(first) != Continue || ask(second) != Continue || ask(first) != Stop {
		t.Error("the filters do not count together")
	}
	third := open(`, "stage": 0`)
	if third.engine != first.engine {
		t.Error("filters with the same engine do not share it")
	}
	first.Close(true)
	second.Close(true)
	if ask(third) != Stop {
		t.Error("counters were lost")
	}
	third.Close(true)
	if len(shared.engines) != 0 || len(shared.stores) != 0 {
		t.Errorf("%d engines and %d stores are left", len(shared.engines), len(shared.stores))
	}
	_, err := Open([]byte(`{"domain": "frozen", "rules": "`+dir+`"}`), testHost{}, slog.New(slog.DiscardHandler))
	if err == nil || len(shared.engines) != 0 {
		t.Errorf("a filter without counters: %v, %d engines", err, len(shared.engines))
	}
	f, err := Open([]byte(`{"domain": "d", "rules": "`+dir+`"}`), testHost{validating: true}, slog.New(slog.DiscardHandler))
	if f != nil || err != nil || len(shared.stores) != 0 {
		t.Errorf("validating: %v, %v, %d stores", f, err, len(shared.stores))
	}
}

// A filter that is rejected, or only validated, connects to nothing. Ending background work may have to wait for Redis,
// and Envoy's main thread would wait with it.
func TestOnlyFiltersInUseConnect(t *testing.T) {
	var config net.ListenConfig
	redis, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	good := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]")
	for _, c := range []struct {
		rules      string
		validating bool
	}{{t.TempDir(), false}, {good, true}} {
		text := `{"domain": "d", "rules": "` + c.rules + `", "redis_url": "` + redis.Addr().String() + `", "overrides": "redis"}`
		f, err := Open([]byte(text), testHost{validating: c.validating}, slog.New(slog.DiscardHandler))
		if f != nil || (err == nil) != c.validating {
			t.Errorf("validating %v: %v, %v", c.validating, f, err)
		}
	}
	own, err := net.Dial("tcp", redis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	first, err := redis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.RemoteAddr().String() != own.LocalAddr().String() {
		t.Error("a connection was made")
	}
}

// panicking is a request that makes the module panic when it is read, or when it is answered.
type panicking struct {
	testRequest
	answered bool
}

func (p *panicking) RemoteAddress() (string, bool) {
	if !p.answered {
		panic("kaboom")
	}
	return "192.0.2.1:80", true
}

func (*panicking) SetMetadata(string, []byte) { panic("kaboom") }

// After a panic the request has no decision, or no answer. The failure mode then decides.
func TestPanicIsAFailure(t *testing.T) {
	dir := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 2}}]")
	for failureModeDeny, want := range map[string]Result{"false": Continue, "true": Stop} {
		text := `{"domain": "d", "rules": "` + dir + `", "rate_limits": [{"actions": [{"remote_address": {}}]}],
			"response_dynamic_metadata": true, "failure_mode_deny": ` + failureModeDeny + `}`
		f, err := Open([]byte(text), testHost{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		counted := []Counter{f.counters.failed, f.counters.failureModeAllowed}
		if want == Stop {
			counted = counted[:1]
		}
		for range 10 { // more than the limit
			for _, answered := range []bool{false, true} {
				r := &panicking{testRequest{cluster: "upstream"}, answered}
				if _, got := f.Begin(r, nil); got != want || (r.replied == 500) != (want == Stop) || !slices.Equal(r.counted, counted) {
					t.Errorf("failure_mode_deny %s: %v, replied %d, counted %v", failureModeDeny, got, r.replied, r.counted)
				}
			}
		}
		f.Close(true)
	}
}

// Engines end side by side, so that Envoy ends in time: only after the last one does its main thread wait, for all of
// them.
func TestEnginesEndSideBySide(t *testing.T) {
	dir := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]")
	var log servicetest.Log
	var all [3]*Filter
	theLast := make(chan struct{})
	for i := range all {
		text := fmt.Sprintf(`{"domain": "d", "rules": %q, "memory_max_counters": %d}`, dir, i+1)
		var err error
		if all[i], err = Open([]byte(text), testHost{}, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		all[i].engine.work.Closing(func() error {
			if i == len(all)-1 {
				close(theLast)
			}
			<-theLast
			return nil
		})
	}
	const late, ended = "engines did not end in time", "an engine ended"
	all[0].Close(true)
	all[1].Close(true)
	if n := len(log.With(late)) + len(log.With(ended)); n > 0 {
		t.Errorf("engines were waited for before the last one:\n%s", &log)
	}
	all[2].Close(true)
	if len(log.With(late)) == 0 && len(log.With(ended)) != len(all) {
		t.Errorf("not all engines were waited for:\n%s", &log)
	}
	redistest.Eventually(t, "all engines to end", func(context.Context) error {
		if n := len(log.With(ended)); n != len(all) {
			return fmt.Errorf("%d did", n)
		}
		return nil
	})
}

// Work that panics is restarted.
func TestWorkBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		times := 0
		work := again(slog.New(slog.NewTextHandler(&log, nil)))(func(context.Context) error {
			if times++; times < 3 {
				panic("kaboom")
			}
			return errors.New("the end")
		})
		if err := work(t.Context()); err == nil || err.Error() != "the end" || times != 3 || strings.Count(log.String(), "kaboom") != 2 {
			t.Errorf("%v after %d times:\n%s", err, times, &log)
		}
	})
}
