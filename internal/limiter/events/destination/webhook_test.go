package destination

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// call is a request as a webhook got it.
type call struct {
	header http.Header
	method string
	path   string
	body   string
}

// listen serves a webhook on a socket. Each of its calls is on the channel.
func listen(t *testing.T, answer http.HandlerFunc) (url string, calls <-chan call) {
	t.Helper()
	got := make(chan call, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- call{r.Header, r.Method, r.URL.String(), string(body)}
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

func hook(t *testing.T, opts Options) *webhook {
	t.Helper()
	w, err := newWebhook(&opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

func within(t *testing.T) context.Context { return ending(t, 30*time.Second) }

func ending(t *testing.T, after time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	t.Cleanup(cancel)
	return ctx
}

func TestRequestToAWebhook(t *testing.T) {
	url, calls := listen(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	if err := hook(t, Options{To: url + "/in?key=1"}).Send(within(t), []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	got := <-calls
	if got.method != http.MethodPost || got.path != "/in?key=1" || got.body != `{"a":1}` ||
		got.header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" || got.header.Get("User-Agent") != "ratelimitd" {
		t.Errorf("%+v", got)
	}
	if got.header["Idempotency-Key"] != nil {
		t.Errorf("headers %v", got.header)
	}
}

// The answer decides whether the event is sent again.
func TestAnswersOfAWebhook(t *testing.T) {
	for code, want := range map[int]string{
		200: "accepted", 202: "accepted", 204: "accepted", 299: "accepted",
		400: "rejected", 413: "rejected", 415: "rejected", 422: "rejected",
		301: "later", 307: "later", 401: "later", 403: "later", 404: "later", 408: "later", 410: "later", 425: "later", 429: "later", 500: "later", 502: "later", 503: "later",
	} {
		url, calls := listen(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(code)
		})
		err := hook(t, Options{To: url}).Send(within(t), []byte(`{}`))
		got := "accepted"
		if _, ok := errors.AsType[*events.RejectedError](err); ok {
			got = "rejected"
		}
		if later, ok := errors.AsType[*events.LaterError](err); ok {
			got = "later"
			if later.After != 7*time.Second {
				t.Errorf("%d with Retry-After 7: a pause of %s", code, later.After)
			}
		}
		if err != nil && strings.Contains(err.Error(), url) {
			t.Errorf("the error has the URL: %v", err)
		}
		if got != want || len(calls) != 1 {
			t.Errorf("an event that is answered with %d is %s after %d requests, want %s after one", code, got, len(calls), want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "soon": 0, "99999999999999": 0,
		"Tue, 10 Mar 2026 12:01:10 GMT": time.Minute, "Tue, 10 Mar 2026 11:01:10 GMT": 0,
	} {
		if got := retryAfter(value, time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC)); got != want {
			t.Errorf("Retry-After %q is %s, want %s", value, got, want)
		}
	}
}

// An attempt fails if the webhook hangs, closes the connection or does not listen. The error contains no part of the
// URL that may be secret.
func TestWebhookThatFails(t *testing.T) {
	hangs, _ := listen(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	closes, _ := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	})
	halfway, _ := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 20"))
		_ = conn.Close()
	})
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, url := range map[string]string{"hangs": hangs, "closes": closes, "ends halfway": halfway, "is gone": gone.URL} {
		ctx := within(t)
		if name == "hangs" {
			ctx = ending(t, 20*time.Millisecond)
		}
		err := hook(t, Options{To: url + "/secret?token=secret"}).Send(ctx, []byte(`{}`))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("a webhook that %s: %v", name, err)
		}
	}
}

// A long answer does not hold up the next event.
func TestLongAnswer(t *testing.T) {
	url, _ := listen(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	})
	w := hook(t, Options{To: url})
	for range 2 {
		if err := w.Send(within(t), []byte(`{}`)); err != nil {
			t.Error(err)
		}
	}
}

// Headers come from a file that is read for each request, so that a secret can be replaced.
func TestHeadersOfAWebhook(t *testing.T) {
	url, calls := listen(t, nil)
	file := filepath.Join(t.TempDir(), "headers")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# of the webhook\n\nauthorization: Bearer one\r\nX-Tenant:  acme \n")
	w := hook(t, Options{To: url, HeadersFile: file})
	send := func() error { return w.Send(within(t), []byte(`{}`)) }
	if err := send(); err != nil {
		t.Fatal(err)
	}
	if got := <-calls; got.header.Get("Authorization") != "Bearer one" || got.header.Get("X-Tenant") != "acme" {
		t.Errorf("headers %v", got.header)
	}
	write("Authorization: Bearer two\n")
	if err := send(); err != nil {
		t.Fatal(err)
	}
	if got := <-calls; got.header.Get("Authorization") != "Bearer two" || got.header.Get("X-Tenant") != "" {
		t.Errorf("headers %v", got.header)
	}
	for text, want := range map[string]string{
		"X: 1\nBearer hunter2":                  "line 2 is no header: write `Name: value`",
		"Bearer hunter2: x":                     "line 1 is no header",
		"Authorization: hunter2\x01":            "line 1 is no header",
		": hunter2":                             "line 1 is no header",
		"content-type: text/hunter2":            "line 1: remove Content-Type, which ratelimitd sets",
		"X: " + strings.Repeat("hunter2", 9999): "has more than 65536 bytes",
	} {
		write(text)
		if err := send(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.40q: %v, want an error with %q and without the text", text, err, want)
		}
	}
	if len(calls) != 0 {
		t.Errorf("%d requests were sent without usable headers", len(calls))
	}
}
