package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// limiter opens a limiter with the rules of the examples.
func limiter() (l *ratelimit.Limiter, end func()) {
	dir, err := os.MkdirTemp("", "rules")
	if err != nil {
		log.Fatal(err)
	}
	err = os.WriteFile(filepath.Join(dir, "api.yaml"), []byte(`
domain: api
descriptors:
  - key: customer
    descriptors:
      - key: route
        rate_limit: {unit: year, requests_per_unit: 2}
  - key: to
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 1}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 1000}
    reservations: {ttl: 1m}
`), 0o600)
	if err != nil {
		log.Fatal(err)
	}
	l, err = ratelimit.Open(context.Background(), ratelimit.Options{Dir: rulefiles.Dir(dir), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return l, func() { _, _ = l.Close(), os.RemoveAll(dir) }
}

// send sends a request of ann, and returns the status of the answer.
func send(c *http.Client, url string) string {
	r, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("X-Api-Key", "ann")
	answer, err := c.Do(r)
	if err != nil {
		return err.Error()
	}
	answer.Body.Close()
	return answer.Status
}

func ExampleNew() {
	l, end := limiter()
	defer end()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello/{name}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello", r.PathValue("name")) })
	limit := httplimit.New(l, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "customer").Or("nobody"), httplimit.Pattern("route").Or("none")}},
	})
	server := httptest.NewServer(limit(mux))
	defer server.Close()
	for range 3 {
		fmt.Println(send(server.Client(), server.URL+"/hello/ann"))
	}
	// Output:
	// 200 OK
	// 200 OK
	// 429 Too Many Requests
}

// A request costs the size of its response. It is known when the response is complete.
func ExampleOptions_actual() {
	l, end := limiter()
	defer end()
	limit := httplimit.New(l, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "tokens").Or("nobody")}},
		Cost:        func(*http.Request) limits.Amount { return limits.Amount{Hits: 500} }, // the most that a request may use
		Actual: func(_ *http.Request, _ int, bytes int64) limits.Amount {
			return limits.Amount{Hits: uint64(bytes)}
		},
	})
	server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "short") })))
	defer server.Close()
	fmt.Println(send(server.Client(), server.URL))
	r := limits.NewRequest("api", "tokens", "ann")
	r.Amount.Peek = true
	d, err := l.Decide(context.Background(), r)
	fmt.Println(d.Statuses[0].Remaining, err)
	// Output:
	// 200 OK
	// 994 <nil>
}

// A client repeats requests that are denied, and sends at most 100 requests a second.
func ExampleTransport() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	l, end := limiter()
	defer end()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &httplimit.Transport{
		Decider:     l,
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Host("to")}},
	}}
	fmt.Println(send(client, server.URL), requests)
	// Output: 200 OK 2
}
