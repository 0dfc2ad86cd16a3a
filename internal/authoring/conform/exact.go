package conform

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	clients  = 16  // number of concurrent clients
	perDay   = 400 // the limit that clients share
	perWin   = 50  // the limit of each second
	edgesFor = 3300 * time.Millisecond
)

// counted is a case whose requests are not written down: they are counted.
type counted struct {
	Case
	limits []limit
	late   bool                         // its steps load the rules
	steps  func(*talk) (failure string) // failure is empty if the case passed or was skipped
}

var exactCases = []counted{
	{Case{Name: "together", Why: "Clients at the same time get exactly the limit together."},
		[]limit{{key: "user", requests: perDay, unit: "day"}}, false,
		func(t *talk) string {
			return t.wantPassed(t.send(2*perDay, 0, "user=one"), perDay, "of %d requests", 2*perDay)
		}},
	{Case{Name: "window-edges", Why: "No window of a second lets more pass than its limit."},
		[]limit{{key: "user", requests: perWin, unit: "second"}}, false,
		func(t *talk) string {
			began := time.Now()
			passed := t.send(0, edgesFor, "user=one")
			windows := int64(time.Since(began)/time.Second) + 2 // largest number of windows touched in this time
			if passed <= windows*perWin && passed > perWin {
				return ""
			}
			return fmt.Sprintf("%d requests passed in at most %d windows of %d", passed, windows, perWin)
		}},
	{Case{Name: "restart", Why: "A restart forgets nothing that was counted."},
		[]limit{{key: "user", requests: perDay, unit: "day"}}, false,
		func(t *talk) string {
			if t.Restart == "" {
				return t.skip("no command to restart the service was given")
			}
			before := t.send(perDay/2, 0, "user=one")
			t.failed(shell(t.ctx, t.Restart))
			t.failed(t.await(t.ctx, t.domain))
			return t.wantPassed(before+t.send(perDay, 0, "user=one"), perDay, "with %d before a restart", before)
		}},
}

// talk is a case's connection to the service, with the results so far.
type talk struct {
	*suite
	ctx     context.Context
	c       *counted
	domain  string
	err     error  // the first
	skipped string // why
}

func (s *suite) selectedCounted() (chosen []counted) {
	add := func(level Level, cases []counted) {
		for _, c := range cases {
			c.Level, c.Rules = level, s.Form.rules(s.domain(c.Name), c.limits)
			if s.matches(&c.Case) {
				if !c.late {
					s.files[c.Name] = c.Rules
				}
				chosen = append(chosen, c)
			}
		}
	}
	add(Exact, exactCases)
	add(Field, fieldCases)
	return chosen
}

func (s *suite) count(ctx context.Context, c *counted) Result {
	t := &talk{suite: s, ctx: ctx, c: c, domain: s.domain(c.Name)}
	failure := c.steps(t)
	if t.err != nil {
		failure = "no answer: " + t.err.Error()
	}
	return Result{Failure: failure, Skipped: t.skipped}
}

func (t *talk) skip(why string) string {
	t.skipped = why
	return ""
}

func (t *talk) failed(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *talk) wantPassed(passed, want int64, format string, args ...any) string {
	if passed == want {
		return ""
	}
	return fmt.Sprintf("%d passed "+format+", want %d", append(append([]any{passed}, args...), want)...)
}

// request is a request of some hits, with a descriptor for each entry.
func request(domain string, hits uint32, entries ...string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: domain, HitsAddend: hits}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		r.Descriptors = append(r.Descriptors,
			&descriptorv3.RateLimitDescriptor{Entries: []*descriptorv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
	}
	return r
}

// ask sends one request. Without an answer it returns nil.
func (t *talk) ask(hits uint32, entries ...string) *ratelimitv3.RateLimitResponse {
	answer, err := t.Ask(t.ctx, request(t.domain, hits, entries...))
	t.failed(err)
	return answer
}

func passes(answer *ratelimitv3.RateLimitResponse) bool {
	return answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OK
}

// passed sends requests one after the other, and returns how many passed.
func (t *talk) passed(n int, entries ...string) (passed int64) {
	for range n {
		if passes(t.ask(1, entries...)) {
			passed++
		}
	}
	return passed
}

// send sends requests from all clients, a number of them or for a time, and returns how many passed. Each request has
// one of the entries.
func (t *talk) send(n int64, long time.Duration, entries ...string) int64 {
	var sent, ok atomic.Int64
	var failed atomic.Pointer[error]
	until := time.Now().Add(long)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for failed.Load() == nil && t.ctx.Err() == nil {
				next := sent.Add(1)
				if long > 0 && !time.Now().Before(until) || long == 0 && next > n {
					return
				}
				answer, err := t.Ask(t.ctx, request(t.domain, 1, entries[next%int64(len(entries))]))
				if err != nil {
					failed.Store(&err)
				} else if passes(answer) {
					ok.Add(1)
				}
			}
		})
	}
	all.Wait()
	if e := failed.Load(); e != nil {
		t.failed(*e)
	}
	t.failed(t.ctx.Err())
	return ok.Load()
}
