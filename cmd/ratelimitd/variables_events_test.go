package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// event is the part of an event that tests read.
type event struct {
	ID, Source, Type string
	Data             struct {
		Entries     []struct{ Key, Value string }
		Counter     string
		PeriodStart time.Time `json:"period_start"`
		PeriodEnd   time.Time `json:"period_end"`
	}
}

// deniedAtOnce returns a request whose descriptors are all denied, at the same time.
func deniedAtOnce(n int) *ratelimitv3.RateLimitRequest {
	r := ask("d", "k", "0")
	for i := 1; i < n; i++ {
		r.Descriptors = append(r.Descriptors, ask("d", "k", fmt.Sprint(i)).Descriptors...)
	}
	r.HitsAddend = 10
	return r
}

// eventsIn returns the events in a file, which need not exist.
func eventsIn(t *testing.T, file string) (all []event) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// listenEvents serves a webhook that fails or accepts all requests. It returns the requests without their bodies.
func listenEvents(t *testing.T, code int, config *tls.Config) (url string, requests <-chan *http.Request) {
	t.Helper()
	got := make(chan *http.Request, 1000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(code)
		got <- r
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if config == nil {
		server.Start()
	} else {
		server.TLS = config
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	return server.URL, got
}

func variablesOfEvents(t *testing.T) []variable {
	// written sends a request that is denied, stops the service, and describes the events in the file with say.
	written := func(descriptors int, say func([]event) string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			to := filepath.Join(t.TempDir(), "events.jsonl")
			return map[string]string{"RATELIMITD_EVENTS": to}, running(func(t *testing.T, i *instance) string {
				answers(deniedAtOnce(descriptors))(t, i)
				i.stop()
				i.log.Wait(t, "stopped")
				return say(eventsIn(t, to))
			})
		}
	}
	count := func(all []event) string { return fmt.Sprintf("%d events", len(all)) }
	// received sends a request that is denied, and describes the first request to the webhook with say, or reports that
	// there was none.
	received := func(say func(*http.Request) string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			url, requests := listenEvents(t, http.StatusOK, nil)
			return map[string]string{"RATELIMITD_EVENTS": url}, func(t *testing.T, i *instance) string {
				if i.err != nil {
					return "does not start"
				}
				answers(deniedAtOnce(1))(t, i)
				said := ""
				eventually(t, "an event, or why there is none", func() bool {
					select {
					case r := <-requests:
						said = say(r)
					default:
						if strings.Contains(i.log.String(), "events cannot be sent; they wait") {
							said = "not sent"
						}
					}
					return said != ""
				})
				return said
			}
		}
	}
	header := func(name string) func(*http.Request) string {
		return func(r *http.Request) string { return "has " + r.Header.Get(name) }
	}
	headers := file(t, "Authorization: Bearer abc\n")
	none := map[string]string{"RATELIMITD_EVENTS": "https://127.0.0.1:1"}
	return []variable{
		{name: "RATELIMITD_EVENTS", prepare: written(1, count), unset: "0 events", set: "1 events", bad: map[string]string{"ftp://h/": "http or https", "/none/events": "/none"}},
		{name: "RATELIMITD_EVENTS_VALUES", value: "true", prepare: written(1, func(all []event) string { return fmt.Sprint(all[0].Data.Entries) }), unset: "[{k }]", set: "[{k 0}]"},
		{name: "RATELIMITD_EVENTS_HEADERS_FILE", value: headers, prepare: received(header("Authorization")), unset: "has ", set: "has Bearer abc", with: none, bad: map[string]string{"/none": "/none"}},
	}
}
