package operator

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// A pasted log has a bound in bytes and in time, and one at a time is replayed.
func TestReplayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *Replay
		p := newReplays(func(ctx context.Context, r *Replay) (any, error) {
			got = r
			switch r.Log {
			case "slow":
				<-ctx.Done()
				return nil, ctx.Err()
			case "bad":
				return nil, errors.New("line 1: " + strings.Repeat("\xff", 1<<20))
			}
			return map[string]int{"requests": 1}, nil
		})
		ask := func(body string) (int, string) {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/console/simulate", strings.NewReader(body)))
			return w.Code, w.Body.String()
		}
		expect := func(body string, code int, text string) {
			t.Helper()
			if is, said := ask(body); is != code || !strings.Contains(said, text) || len(said) > 8<<10 {
				t.Errorf("%.40s: %d %.200s (%d bytes), want %d %s", body, is, said, len(said), code, text)
			}
		}
		expect(`{"log": "fine", "format": "nginx", "descriptors": ["a=ip"]}`, http.StatusOK, `{"requests":1}`)
		if got.Format != "nginx" || len(got.Descriptors) != 1 {
			t.Errorf("%+v", got)
		}
		expect(`{"log": "bad"}`, http.StatusBadRequest, "line 1: ")
		expect(`{"logs": "fine"}`, http.StatusBadRequest, `unknown field "logs"`)
		expect(`{`, http.StatusBadRequest, "not as expected")
		expect(`{"log": "`+strings.Repeat("x", maxReplayBytes)+`"}`, http.StatusRequestEntityTooLarge, "more than 4 MiB")
		var slow sync.WaitGroup
		slow.Go(func() { expect(`{"log": "slow"}`, http.StatusUnprocessableEntity, "more than 5s") })
		synctest.Wait()
		expect(`{"log": "fine"}`, http.StatusServiceUnavailable, "another log")
		slow.Wait()
	})
}

// A replay costs the process time: it needs the role operate, and no page of another origin may ask for it.
func TestReplayNeedsRole(t *testing.T) {
	s := start(t, Options{Access: Access{Tokens: owners{"t": "ana", "r": "bob read"}}, Replay: func(context.Context, *Replay) (any, error) { return "done", nil }})
	for _, c := range []struct {
		token, origin string
		code          int
	}{{"", "", http.StatusUnauthorized}, {"r", "", http.StatusForbidden}, {"t", "https://elsewhere.example", http.StatusForbidden}, {"t", "", http.StatusOK}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.DebugAddr.String()+"/console/simulate", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != c.code {
			t.Errorf("%+v: %s", c, answer.Status)
		}
	}
}
