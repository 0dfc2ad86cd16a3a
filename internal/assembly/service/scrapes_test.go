package service

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// scraperAt returns a client with a separate address.
func scraperAt(t *testing.T, address string) *http.Client {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Skipf("this system has no address %s: %v", address, err)
	}
	_ = l.Close()
	tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Scrapes that come while an answer is made share the next one, which has all that was counted before they came.
func TestScrapesShareAnAnswer(t *testing.T) {
	var made atomic.Int64
	begun, proceed := make(chan struct{}, 10), make(chan struct{})
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		made.Add(1)
		begun <- struct{}{}
		<-proceed
		_, _ = io.WriteString(w, "metrics\n")
	}), nil)
	arrived := make(chan struct{}, 20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	var all sync.WaitGroup
	scrape := func(c *http.Client, plain bool) {
		all.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if plain {
				r.Header.Set("Accept-Encoding", "identity")
			}
			answer, err := c.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = answer.Body.Close() }()
			if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || string(body) != "metrics\n" {
				t.Errorf("%d %q %v", answer.StatusCode, body, err)
			}
		})
	}
	scrape(scraperAt(t, "127.0.0.1"), false)
	<-arrived
	<-begun
	addresses := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"}
	for i, at := range addresses {
		scrape(scraperAt(t, at), i%2 == 0)
	}
	for range addresses {
		<-arrived
	}
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a := s.next[formOf(httptest.NewRequest(http.MethodGet, "/", nil))]; a != nil {
			return a.readers
		}
		return 0
	}
	redistest.Eventually(t, "all others wait", func(context.Context) error {
		if n := waiting(); n != len(addresses) {
			return fmt.Errorf("%d wait, not %d", n, len(addresses))
		}
		return nil
	})
	close(proceed)
	all.Wait()
	if got := made.Load(); got != 2 {
		t.Errorf("%d answers are made, want 2", got)
	}
}

// A peer that does not read does not block others, and its unread bytes are counted. The next scrape of the same peer
// waits.
func TestSlowScrapers(t *testing.T) {
	// does not get smaller when it is compressed, and does not fit into the buffers of sockets
	text := make([]byte, 12<<20)
	_, _ = rand.Read(text)
	budget := intake.NewBudget(18 << 20)
	room := budget.Class("scrapes", 0)
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }), room)
	server := httptest.NewServer(s)
	defer server.Close()
	scrape := func(c *http.Client) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	slow := scrape(scraperAt(t, "127.0.0.2"))
	defer func() { _ = slow.Body.Close() }()
	if held := room.Held(); slow.StatusCode != http.StatusOK || held < 12<<20 {
		t.Fatalf("%d, %d bytes are counted", slow.StatusCode, held)
	}
	rejected := scrape(scraperAt(t, "127.0.0.3"))
	body, _ := io.ReadAll(rejected.Body)
	_ = rejected.Body.Close()
	if rejected.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "no room") {
		t.Errorf("beyond the budget: %d %q", rejected.StatusCode, body)
	}
	text = text[:1<<20]
	other := scrape(scraperAt(t, "127.0.0.3"))
	body, err := io.ReadAll(other.Body)
	_ = other.Body.Close()
	if err != nil || other.StatusCode != http.StatusOK || len(body) != len(text) {
		t.Errorf("another peer: %d, %d bytes, %v", other.StatusCode, len(body), err)
	}
	_ = slow.Body.Close()
	redistest.Eventually(t, "nothing is counted any more", func(context.Context) error {
		if n := room.Held(); n != 0 {
			return fmt.Errorf("%d bytes are", n)
		}
		return nil
	})
}

// A panic while an answer is made ends the scrapes that wait for it, and no others: neither the process nor a later
// scrape.
func TestScrapesAfterAPanic(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	budget := intake.NewBudget(1 << 20)
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "metrics\n")
		if broken.Load() {
			panic("a collector is broken")
		}
	}), budget.Class("scrapes", 0))
	registry := prometheus.NewRegistry()
	shared, err := endpoint.New(endpoint.Options{Metrics: registry, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(shared.Recovering(s))
	defer server.Close()
	scrape := func(want int) {
		t.Helper()
		if code, body := servicetest.Get(t, server.URL); code != want {
			t.Errorf("%d %q, want %d", code, body, want)
		}
	}
	for range 3 { // more often than a place can be lost
		scrape(http.StatusInternalServerError)
	}
	broken.Store(false)
	scrape(http.StatusOK)
	server.Close() // waits until the handlers have returned
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.peers) + len(s.next); n != 0 || budget.Held() != 0 {
		t.Errorf("%d peers and answers are kept, and %d bytes", n, budget.Held())
	}
}
