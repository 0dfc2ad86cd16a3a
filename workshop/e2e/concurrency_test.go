package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// inFlightLimits are the rate_limits of docs/do/reservations.md for requests in flight.
const inFlightLimits = `
  - actions:
      - request_headers: {header_name: x-user-id, descriptor_key: job}
      - request_headers: {header_name: x-request-id, descriptor_key: reserve_id}
  - actions:
      - request_headers: {header_name: x-user-id, descriptor_key: job}
      - request_headers: {header_name: x-request-id, descriptor_key: commit_id}
    apply_on_stream_done: true
`

// Two requests of a user are in flight. The next ones are denied, and their end frees no place. A place becomes free
// when its request ends, or when its client disconnects.
func TestRequestsInFlight(t *testing.T) {
	page, err := os.ReadFile("../../docs/do/reservations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```yaml\nrate_limits:"+inFlightLimits+"```") {
		t.Errorf("docs/do/reservations.md shows other rate_limits than these:%s", inFlightLimits)
	}
	needsEnvoy(t)
	f := &fleet{upstream: startUpstream(t)}
	f.services = []*service{startService(t, "ratelimitd", rules(t, `
domain: e2e
descriptors:
  - {key: job, rate_limit: {algorithm: concurrency, max_in_flight: 2, ttl: 10m}}
`))}
	e := startEnvoy(t, bootstrap{
		Clusters:  f.clusters(),
		Listeners: []listener{{Name: "main", Routes: perRoute("/job", inFlightLimits)}},
	})
	asked := answered(t, f.services...)
	var expected answers
	user := []string{"x-user-id", "u"}
	expect := func(want ...int) {
		t.Helper()
		if got := e.codes(t, len(want), "main", "/job", user...); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for _, code := range want {
			expected.OK++ // the end of the request
			if code == http.StatusOK {
				expected.OK++
			} else {
				expected.OverLimit++
			}
		}
		f.awaitAnswers(t, asked, expected)
	}
	var done sync.WaitGroup
	t.Cleanup(done.Wait)
	hold := func(ctx context.Context, want string) {
		done.Go(func() {
			if got := e.outcome(ctx, "main", "/job/hold", user...); got != want {
				t.Errorf("a request that was let through: %s, want %s", got, want)
			}
		})
	}
	held := func(n int64) {
		t.Helper()
		await(t, "requests to be under way", func(context.Context) error {
			if got := f.upstream.held.Load(); got != n {
				return fmt.Errorf("%d are, want %d", got, n)
			}
			return nil
		})
	}
	leaves, leave := context.WithCancel(t.Context())
	defer leave()
	hold(t.Context(), "200 OK")
	hold(leaves, context.Canceled.Error())
	held(2)
	expected.OK = 2
	expect(429, 429, 429)

	leave()
	held(1)
	expected.OK++
	f.awaitAnswers(t, asked, expected)
	expect(200, 200)
	f.upstream.release <- struct{}{}
	expected.OK++
	f.awaitAnswers(t, asked, expected)
}
