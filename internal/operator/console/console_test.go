package console

import (
	"bufio"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func ask(method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Files(w, r)
	return w
}

var loaded = regexp.MustCompile(`(?:src|href)="(/console/[^"]+)"|"(/console/[^"]+)"`)

// The page and all that it loads are there, small enough for a slow line, and only the page must be asked for again.
func TestFiles(t *testing.T) {
	page := ask(http.MethodGet, Path, "Accept-Encoding", "gzip")
	if page.Code != http.StatusOK || page.Header().Get("Cache-Control") != "no-cache" {
		t.Fatalf("%d %v", page.Code, page.Header())
	}
	total := page.Body.Len()
	z, err := gzip.NewReader(page.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, m := range loaded.FindAllStringSubmatch(string(text), -1) {
		names[m[1]+m[2]] = true
	}
	for name := range load().files { // a browser that finds one only in another one waits twice
		if !names[name] && name != Path {
			t.Errorf("the page does not name %s", name)
		}
	}
	for name := range names {
		w := ask(http.MethodGet, name, "Accept-Encoding", "br, gzip;q=0.5")
		if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		total += w.Body.Len()
		if plain := ask(http.MethodGet, name, "Accept-Encoding", "gzip;q=0"); plain.Header().Get("Content-Encoding") != "" || plain.Body.Len() == 0 {
			t.Errorf("%s: %d bytes plain, %d compressed", name, plain.Body.Len(), w.Body.Len())
		}
		if again := ask(http.MethodGet, name, "Accept-Encoding", "gzip", "If-None-Match", `W/"x", `+w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s: %d with its tag", name, again.Code)
		}
	}
	if total >= 100<<10 || len(names) < 15 {
		t.Errorf("%d files have %d bytes, want less than 100 KiB", len(names)+1, total)
	}
	t.Logf("%d files, %d bytes", len(names)+1, total)
	for _, path := range []string{Path + "nothing.js", Path + "../files/index.html", "/console/lib/uplot/LICENSE"} {
		if w := ask(http.MethodGet, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if w := ask(http.MethodPost, Path); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// No page may frame the console, and it may load and call only the port that it came from.
func TestContentSecurity(t *testing.T) {
	h := ask(http.MethodGet, Path).Header()
	policy := h.Get("Content-Security-Policy")
	for _, part := range strings.Split(policy, "; ") {
		name, sources, _ := strings.Cut(part, " ")
		if strings.HasSuffix(name, "-src") && strings.Trim(regexp.MustCompile(`'sha256-[^']+'`).ReplaceAllString(sources, ""), " ") != "'self'" && name != "default-src" {
			t.Errorf("the policy allows %s", part)
		}
	}
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "trusted-types 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("%q lacks %s", policy, part)
		}
	}
	if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" {
		t.Error(h)
	}
}

// pipe is an answer that the test reads while it is written.
type pipe struct {
	http.ResponseWriter
	io.Writer
}

func (p *pipe) Write(b []byte) (int, error) { return p.Writer.Write(b) }

func (*pipe) Flush() {}

// A listener immediately gets an event and then one a second, for a minute. Without a listener, look is not called.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		e := NewEvents(func(context.Context) any { return looks.Add(1) })
		<-time.After(time.Hour) // an hour on the test's clock
		if n := looks.Load(); n > 0 {
			t.Errorf("looked %d times without a client", n)
		}
		lines, w := io.Pipe()
		go func() {
			e.ServeHTTP(&pipe{httptest.NewRecorder(), w}, httptest.NewRequest(http.MethodGet, Path+"events", nil))
			_ = w.Close()
		}()
		began, events := time.Now(), 0
		for s := bufio.NewScanner(lines); s.Scan(); {
			if strings.HasPrefix(s.Text(), "data: ") {
				if since := time.Since(began); since != time.Duration(events)*time.Second {
					t.Errorf("event %d after %v", events, since)
				}
				events++
			}
		}
		if events < 59 || events > 61 || time.Since(began) != maxAge {
			t.Errorf("%d events in %v", events, time.Since(began))
		}
		synctest.Wait()
		was := looks.Load()
		<-time.After(time.Minute)
		if n := looks.Load(); n != was {
			t.Errorf("looked %d times after the last listener", n-was)
		}
	})
}

// Listeners who come and go do not make the replica look more often than once a second. Each gets an event.
func TestListenersWhoComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		e := NewEvents(func(context.Context) any { return looks.Add(1) })
		defer e.Close()
		began := time.Now()
		for i := range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			w := httptest.NewRecorder()
			time.AfterFunc(10*time.Millisecond, cancel) // 10 ms on the test's clock
			e.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, Path+"events", nil))
			if !strings.HasPrefix(w.Body.String(), "data: ") {
				t.Fatalf("listener %d, after %v: %q", i, time.Since(began), w.Body)
			}
		}
		if n, most := looks.Load(), int64(time.Since(began)/every)+1; n > most {
			t.Errorf("looked %d times in %v", n, time.Since(began))
		}
	})
}

// The number of listeners has a bound, and Close ends them.
func TestListeners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEvents(func(context.Context) any { return 1 })
		var served atomic.Int64
		listen := func() int {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+"events", nil))
			served.Add(1)
			return w.Code
		}
		for range maxListeners {
			go listen()
		}
		synctest.Wait()
		if code := listen(); code != http.StatusServiceUnavailable {
			t.Errorf("one too many: %d", code)
		}
		served.Store(0)
		e.Close()
		synctest.Wait()
		if n := served.Load(); n != maxListeners {
			t.Errorf("%d of %d streams ended", n, maxListeners)
		}
		if code := listen(); code != http.StatusServiceUnavailable {
			t.Errorf("after the end: %d", code)
		}
		e.Close()
	})
}
