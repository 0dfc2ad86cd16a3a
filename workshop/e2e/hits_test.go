package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// The number of hits of a request: all forms of hits_addend, charged at the start and at the end of a request; and
// limits that the route sets.
func TestHitsAndRequestLimits(t *testing.T) {
	f := startFleet(t, `
domain: e2e
descriptors:
  - {key: cost, value: fixed, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: cost, value: header, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: cost, value: whole-request, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: cost, value: peek, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: concurrent, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: bytes, rate_limit: {unit: day, requests_per_unit: 5000}}
  - {key: override, rate_limit: {unit: day, requests_per_unit: 5}}
`)
	e := startEnvoy(t, bootstrap{
		Clusters: f.clusters(),
		Listeners: []listener{{
			Name: "main",
			FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata: [{metadata_namespace: e2e, value: {limit: {requests_per_unit: 3, unit: DAY}}}]
- name: envoy.filters.http.set_filter_state
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
    on_request_headers:
    - object_key: envoy.ratelimit.hits_addend
      format_string: {text_format_source: {inline_string: "%REQ(x-weight)%"}, omit_empty_values: true}
      skip_if_empty: true
`,
			Routes: perRoute("/cost-fixed", `
- actions: [{generic_key: {descriptor_key: cost, descriptor_value: fixed}}]
  hits_addend: {number: 3}
`) + perRoute("/cost-header", `
- actions: [{generic_key: {descriptor_key: cost, descriptor_value: header}}]
  hits_addend: {format: "%REQ(x-cost)%"}
`) + perRoute("/cost-request", `
- actions: [{generic_key: {descriptor_key: cost, descriptor_value: whole-request}}]
`) + perRoute("/spend", `
- actions: [{generic_key: {descriptor_key: cost, descriptor_value: peek}}]
`) + perRoute("/peek", `
- actions: [{generic_key: {descriptor_key: cost, descriptor_value: peek}}]
  hits_addend: {number: 0}
`) + perRoute("/concurrent", `
- actions: [{request_headers: {header_name: x-user, descriptor_key: concurrent}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: concurrent}}]
  hits_addend: {number: 1, is_negative_hits: true}
  apply_on_stream_done: true
`) + perRoute("/bytes", `
- actions: [{request_headers: {header_name: x-user, descriptor_key: bytes}}]
  hits_addend: {number: 0}
- actions: [{request_headers: {header_name: x-user, descriptor_key: bytes}}]
  hits_addend: {format: "%BYTES_SENT%"}
  apply_on_stream_done: true
`) + `
- match: {prefix: /override-static}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: override, descriptor_value: static}}]
      limit: {rate_limit: {requests_per_unit: 2, unit: DAY}}
- match: {prefix: /override-metadata}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: override, descriptor_value: metadata}}]
      limit: {dynamic_metadata: {metadata_key: {key: e2e, path: [{key: limit}]}}}
- match: {prefix: /override-none}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: override, descriptor_value: none}}]
- match: {prefix: /override-unknown}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: no-rule-has-this, descriptor_value: v}}]
      limit: {rate_limit: {requests_per_unit: 1, unit: HOUR}}
`,
		}},
	})
	expect := func(t *testing.T, path string, headers []string, want ...int) {
		t.Helper()
		if got := e.codes(t, len(want), "main", path, headers...); !slices.Equal(got, want) {
			t.Errorf("%s %v: %v, want %v", path, headers, got, want)
		}
	}

	t.Run("a fixed weight", func(t *testing.T) {
		expect(t, "/cost-fixed", nil, 200, 200, 429) // 3 + 3 of 7
	})
	t.Run("a weight from a header", func(t *testing.T) {
		expect(t, "/cost-header", []string{"x-cost", "4"}, 200, 200)
		expect(t, "/cost-header", []string{"x-cost", "2"}, 200, 429) // 10 of 10
	})
	t.Run("a weight of the whole request", func(t *testing.T) {
		expect(t, "/cost-request", []string{"x-weight", "8"}, 200)
		expect(t, "/cost-request", nil, 200, 200, 429) // 1 each
	})
	t.Run("a look that costs nothing", func(t *testing.T) {
		expect(t, "/peek", nil, 200, 200, 200)
		expect(t, "/spend", nil, 200, 200)
		expect(t, "/peek", nil, 200) // full, but not over
		expect(t, "/spend", nil, 429)
		expect(t, "/peek", nil, 429)
	})
	t.Run("a static limit of the route", func(t *testing.T) {
		expect(t, "/override-static", nil, 200, 200, 429)
	})
	t.Run("a limit from dynamic metadata", func(t *testing.T) {
		expect(t, "/override-metadata", nil, 200, 200, 200, 429)
	})
	t.Run("the rule where the route brings none", func(t *testing.T) {
		expect(t, "/override-none", nil, 200, 200, 200, 200, 200, 429)
	})
	t.Run("a limit of the route where no rule is", func(t *testing.T) {
		expect(t, "/override-unknown", nil, 200, 429)
	})
	f.agree(t, []*envoy{e}, "main") // checked before calls at the end of a stream, which Envoy does not count

	// A limit of two concurrent requests: each gives its hit back when it ends, so the counter is the number in flight.
	t.Run("refund at the end of a stream", func(t *testing.T) {
		user := []string{"x-user", "u"}
		before := e.verdicts(t, "main")
		asked := answered(t, f.services...)
		var held sync.WaitGroup
		t.Cleanup(held.Wait)
		for range 2 {
			held.Go(func() {
				if r, err := e.try(t, "main", "/concurrent/hold", user...); err != nil || r.code != 200 {
					t.Errorf("a request that was let through ended with %d, %v", r.code, err)
				}
			})
		}
		await(t, "two requests to be under way", func(context.Context) error {
			if n := f.upstream.held.Load(); n != 2 {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		expect(t, "/concurrent", user, 429)
		// The denied request charged one hit and returned it at its end.
		f.awaitAnswers(t, asked, answers{OK: 3, OverLimit: 1})
		expect(t, "/concurrent", user, 429)
		f.awaitAnswers(t, asked, answers{OK: 4, OverLimit: 2})

		f.upstream.release <- struct{}{}
		f.awaitAnswers(t, asked, answers{OK: 5, OverLimit: 2}) // the refund of the released request
		expect(t, "/concurrent", user, 200)                    // there is room again
		f.awaitAnswers(t, asked, answers{OK: 7, OverLimit: 2})
		f.upstream.release <- struct{}{}
		held.Wait()
		f.awaitAnswers(t, asked, answers{OK: 8, OverLimit: 2})
		expect(t, "/concurrent", user, 200)
		f.awaitAnswers(t, asked, answers{OK: 10, OverLimit: 2})
		if got, want := e.verdicts(t, "main").minus(before), (verdicts{OK: 4, OverLimit: 2}); got != want {
			t.Errorf("Envoy counted %+v, want %+v", got, want)
		}
	})

	// The number of bytes is known only after they are sent: the request peeks first and charges afterwards.
	t.Run("charge at the end of a stream", func(t *testing.T) {
		asked := answered(t, f.services...)
		user := []string{"x-user", "downloader"}
		for i := range 2 {
			expect(t, "/bytes/bytes?n=3000", user, 200)
			f.awaitAnswers(t, asked, answers{OK: 2*i + 2 - i, OverLimit: i})
		}
		expect(t, "/bytes/bytes?n=3000", user, 429)
		expect(t, "/bytes/bytes?n=3000", []string{"x-user", "another"}, 200)
	})
}

// In the rate_limits of a route or virtual host, Envoy ignores hits_addend and honours apply_on_stream_done. So a
// refund that is written there becomes a second charge. Both settings work in the filter's own rate_limits and in the
// rate_limits of RateLimitPerRoute.
func TestLimitsOfRoutes(t *testing.T) {
	f := startFleet(t, `
domain: e2e
descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 4}}]
`)
	const weight = `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {number: 2}
`
	const refund = `
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  hits_addend: {number: 1, is_negative_hits: true}
  apply_on_stream_done: true
`
	const plain = "\n- match: {prefix: /}\n  route: {cluster: upstream}\n"
	ofRoute := func(limits string) string {
		return "\n- match: {prefix: /}\n  route:\n    cluster: upstream\n    rate_limits:" + indent(4, limits)
	}
	ofMore := func(limits string) string { return "rate_limits:" + indent(2, limits) }
	for _, c := range []struct {
		where    string
		listener func(limits string) listener
		heeded   bool // whether Envoy honours hits_addend
	}{
		{"route", func(l string) listener { return listener{Routes: ofRoute(l)} }, false},
		{"virtual-host", func(l string) listener { return listener{VirtualHost: ofMore(l), Routes: plain} }, false},
		{"filter", func(l string) listener { return listener{Filter: ofMore(l), Routes: plain} }, true},
		{"route-of-filter", func(l string) listener { return listener{Routes: perRoute("/", l)} }, true},
	} {
		t.Run(c.where, func(t *testing.T) {
			weighed, refunded := c.listener(weight), c.listener(refund)
			weighed.Name, refunded.Name = "weighed", "refunded"
			e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{weighed, refunded}})
			want := []int{200, 200, 200, 200, 429} // one hit each
			if c.heeded {
				want = []int{200, 200, 429}
			}
			if got := e.codes(t, len(want), "weighed", "/", "x-user", c.where+"-weighed"); !slices.Equal(got, want) {
				t.Errorf("of 4, each worth 2: %v, want %v", got, want)
			}
			// Each request charges 1. At its end it refunds 1, or charges again where hits_addend is ignored.
			for i, want := range []int{200, 200, map[bool]int{true: 200, false: 429}[c.heeded]} {
				before := answered(t, f.services...)
				if got := e.codes(t, 1, "refunded", "/", "x-user", c.where+"-refunded"); got[0] != want {
					t.Errorf("request %d: %d, want %d", i+1, got[0], want)
				}
				await(t, "the call at the stream's end", func(context.Context) error {
					if n := answered(t, f.services...).sum() - before.sum(); n != 2 {
						return fmt.Errorf("%d calls", n)
					}
					return nil
				})
			}
		})
	}
}

// awaitAnswers waits until the services have answered this number of calls more than before. It fails the test if that
// never happens. Envoy sends calls at the end of a stream after the request is over.
func (f *fleet) awaitAnswers(t *testing.T, before, more answers) {
	t.Helper()
	await(t, "the services to be asked", func(context.Context) error {
		if got := answered(t, f.services...); got != before.plus(more) {
			return fmt.Errorf("they answered %+v, want %+v", got, before.plus(more))
		}
		return nil
	})
}
