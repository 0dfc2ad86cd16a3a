package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

func start(t *testing.T) (url string, l *ratelimit.Limiter) {
	t.Helper()
	l, err := ratelimit.Open(t.Context(), ratelimit.Options{Dir: rulefiles.Dir("rules"), Strict: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	server := httptest.NewServer(routes(l))
	t.Cleanup(server.Close)
	return server.URL, l
}

// get sends a request with headers, given as pairs.
func get(t *testing.T, url string, headers ...string) (status int, header http.Header, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, string(text)
}

func TestRoutes(t *testing.T) {
	url, _ := start(t)
	for i := range 6 {
		status, header, body := get(t, url+"/search?q=shoes", "X-Api-Key", "ann")
		if i < 5 && (status != http.StatusOK || body != "found shoes\n") || i == 5 && (status != http.StatusTooManyRequests || header.Get("Retry-After") != "12") {
			t.Errorf("search %d: %d %q %v", i, status, body, header)
		}
	}
	if status, _, body := get(t, url+"/pages/7", "X-Api-Key", "ann"); status != http.StatusOK || body != "page 7\n" {
		t.Errorf("another route: %d %q", status, body)
	}
	if status, _, _ := get(t, url+"/search?q=shoes", "X-Api-Key", "bob"); status != http.StatusOK {
		t.Errorf("another customer: %d", status)
	}
}

// A client that changes its key with each request is limited by its address.
func TestAddress(t *testing.T) {
	url, _ := start(t)
	passed := 0
	for i := range 300 {
		key := strings.Repeat("x", i+1)
		if status, _, _ := get(t, url+"/search", "X-Api-Key", key, "X-Forwarded-For", key+", 2001:db8::"+string("0123456789"[i%10])); status == http.StatusOK {
			passed++
		}
	}
	if passed < 200 || passed > 240 { // 200 immediately, and one more in 300 ms
		t.Errorf("%d of 300 requests passed a limit of 200", passed)
	}
}

// A summary costs its words.
func TestSummary(t *testing.T) {
	url, l := start(t)
	if status, _, body := get(t, url+"/summary?text=a+short+text", "X-Api-Key", "ann"); status != http.StatusOK || body != "a short text\n" {
		t.Fatalf("%d %q", status, body)
	}
	left := limits.NewRequest("search", "words", "sha256:SZFeDX1LQC4wF9AQvBwOg8rG") // the hash of ann
	left.Amount.Peek = true
	d, err := l.Decide(t.Context(), left)
	if err != nil || d.Statuses[0].Limit-d.Statuses[0].Remaining != 3 {
		t.Errorf("%+v %v", d, err)
	}
	for range 3 {
		if status, _, _ := get(t, url+"/summary?text="+strings.Repeat("word+", 4500), "X-Api-Key", "bob"); status != http.StatusOK && status != http.StatusTooManyRequests {
			t.Error(status)
		}
	}
	if status, header, _ := get(t, url+"/summary?text=a", "X-Api-Key", "bob"); status != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
		t.Errorf("without words left: %d %v", status, header)
	}
}
