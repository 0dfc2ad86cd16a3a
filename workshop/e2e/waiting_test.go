package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

// withoutClientsDelay removes the headers with which a client could choose its delay, or disable it.
const withoutClientsDelay = `
early_header_mutation_extensions:
- name: envoy.http.early_header_mutation.header_mutation
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
    mutations:
    - remove: x-envoy-fault-delay-request
    - remove: x-envoy-fault-delay-request-percentage
`

// obeysDelay is the fault filter that delays requests by the time in a header.
const obeysDelay = `
- name: envoy.filters.http.fault
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
    delay: {header_delay: {}, percentage: {numerator: 100}}
`

// With envoy_delay, Envoy's fault filter delays each request as the leaky bucket decides: the upstream gets the
// requests one by one. A client cannot choose its delay if its headers are removed; if they are not, it can.
func TestEnvoyHoldsDelayedRequests(t *testing.T) {
	shows(t, "waiting.md", withoutClientsDelay, obeysDelay)
	f := startFleet(t, `
domain: e2e
envoy_delay: true
descriptors:
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_bucket, burst: 3}}
  - {key: slow, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: leaky_bucket, burst: 9}}
`)
	routes := perRoute("/queue", `
- actions: [{request_headers: {header_name: x-user, descriptor_key: queue}}]
`) + perRoute("/slow", `
- actions: [{request_headers: {header_name: x-user, descriptor_key: slow}}]
`)
	e := startEnvoy(t, bootstrap{
		Clusters: f.clusters(),
		Listeners: []listener{
			{Name: "main", Connections: withoutClientsDelay, FiltersAfter: obeysDelay, Routes: routes},
			{Name: "trusting", FiltersAfter: obeysDelay, Routes: routes},
		},
	})
	for range 2 { // one request for each service, so that all connections are there
		e.get(t, "main", "/queue", "x-user", "warm")
	}

	t.Run("one by one", func(t *testing.T) {
		const interval = 500 * time.Millisecond
		const slack = 20 * time.Millisecond // Envoy's timers count from when it last read the clock
		var (
			mu     sync.Mutex
			passed int
			denied time.Duration // time until the last denial
			all    sync.WaitGroup
		)
		start := time.Now()
		for range 8 {
			all.Go(func() {
				r, err := e.try(t, "main", "/queue/arrival", "x-user", "a", "x-envoy-fault-delay-request", "600000")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case r.code == http.StatusOK:
					passed++
				case r.code == http.StatusTooManyRequests:
					denied = time.Since(start)
				}
				if got := r.header.Get("x-ratelimit-delay-ms"); got != "" {
					t.Errorf("the client must wait for %s ms again", got)
				}
			})
		}
		all.Wait()
		if most := 4 + int(denied/interval); passed < 4 || passed > most || denied == 0 {
			t.Errorf("%d of 8 requests passed, and the last was denied after %v: want 4 to %d", passed, denied, most)
		}
		arrivals := f.upstream.arrivals()
		if len(arrivals) != passed {
			t.Fatalf("%d requests passed, and %d arrived", passed, len(arrivals))
		}
		for i, a := range arrivals {
			if got := a.at.Sub(start); got < time.Duration(i)*interval-slack {
				t.Errorf("request %d arrived after %v, want %v at least", i+1, got, time.Duration(i)*interval)
			}
			delays := a.header.Values("x-envoy-fault-delay-request")
			if i == 0 && len(delays) == 0 {
				continue
			}
			if len(delays) != 1 {
				t.Fatalf("request %d has the delays %q", i+1, delays)
			}
			ms, err := strconv.Atoi(delays[0])
			if delay := time.Duration(ms) * time.Millisecond; err != nil || delay > 3*interval || a.at.Sub(start) < delay-slack {
				t.Errorf("request %d with a delay of %q arrived after %v", i+1, delays[0], a.at.Sub(start))
			}
		}
	})

	for name, header := range map[string]string{"delay": "x-envoy-fault-delay-request", "percentage": "x-envoy-fault-delay-request-percentage"} {
		t.Run("a client that sets its own "+name, func(t *testing.T) {
			for range 2 { // the second would have to wait for an hour
				if r := e.get(t, "trusting", "/slow", "x-user", "trusted "+name, header, "0"); r.code != http.StatusOK {
					t.Fatalf("a request whose header is not removed got %d", r.code)
				}
			}
			user := "distrusted " + name
			e.get(t, "main", "/slow", "x-user", user, header, "0")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan string)
			go func() { done <- e.outcome(ctx, "main", "/slow", "x-user", user, header, "0") }()
			held := func(n int) func(context.Context) error {
				return func(context.Context) error {
					if got := e.stats(t, "fault")["http.main.fault.active_faults"]; got != n {
						return fmt.Errorf("it holds %d requests", got)
					}
					return nil
				}
			}
			await(t, "Envoy to hold the request", held(1))
			cancel()
			if got := <-done; got != context.Canceled.Error() {
				t.Errorf("a request that must wait for an hour: %s", got)
			}
			await(t, "Envoy to forget the request", held(0))
		})
	}
}

// outcome sends a request. It returns the status of the answer, or the reason for a missing answer.
func (e *envoy) outcome(ctx context.Context, listener, path string, headers ...string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.ports[listener]+path, nil)
	if err != nil {
		return err.Error()
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if ctx.Err() != nil {
		return ctx.Err().Error()
	}
	if err != nil {
		return err.Error()
	}
	_ = res.Body.Close()
	return res.Status
}
