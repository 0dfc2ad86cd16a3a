package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate/gatetest"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

// get sends a request with headers, given as pairs, and returns the answer with its body.
func get(t *testing.T, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

var byCustomer = []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "customer")}}

func TestDenial(t *testing.T) { gatetest.Each(t, gatetest.Rules, testDenial) }

func testDenial(t *testing.T, l gatetest.Counting) {
	limit := httplimit.New(l, httplimit.Options{Domain: "api", Descriptors: byCustomer})
	url := serve(t, limit(http.HandlerFunc(hello)))
	for range 2 {
		answer, body := get(t, url, "X-Api-Key", "ann")
		if answer.StatusCode != http.StatusOK || body != "hello" || answer.Header.Get("RateLimit-Limit") != "" {
			t.Fatalf("%s %q %v", answer.Status, body, answer.Header)
		}
	}
	answer, body := get(t, url, "X-Api-Key", "ann")
	if answer.StatusCode != http.StatusTooManyRequests || body != "too many requests\n" {
		t.Errorf("%s %q", answer.Status, body)
	}
	for _, name := range []string{"Retry-After", "RateLimit-Reset"} {
		if wait, err := time.ParseDuration(answer.Header.Get(name) + "s"); err != nil || wait <= 0 || wait > 366*24*time.Hour {
			t.Errorf("%s: %q", name, answer.Header.Get(name))
		}
	}
	if answer.Header.Get("RateLimit-Limit") != "2" || answer.Header.Get("RateLimit-Remaining") != "0" {
		t.Errorf("%v", answer.Header)
	}
	if answer, _ := get(t, url, "X-Api-Key", "bob"); answer.StatusCode != http.StatusOK {
		t.Errorf("another customer: %s", answer.Status)
	}
}

func TestHeadersOfAllowedRequests(t *testing.T) {
	gatetest.Each(t, gatetest.Rules, testHeadersOfAllowedRequests)
}

func testHeadersOfAllowedRequests(t *testing.T, l gatetest.Counting) {
	limit := httplimit.New(l, httplimit.Options{Domain: "api", Descriptors: byCustomer, Headers: true})
	answer, _ := get(t, serve(t, limit(http.HandlerFunc(hello))), "X-Api-Key", "ann")
	if answer.Header.Get("RateLimit-Limit") != "2" || answer.Header.Get("RateLimit-Remaining") != "1" {
		t.Errorf("%v", answer.Header)
	}
}

// Headers that the rules name are sent instead, even if hits are reserved.
func TestHeadersOfRules(t *testing.T) {
	gatetest.Each(t, "headers: [ietf]\n"+gatetest.Rules, func(t *testing.T, l gatetest.Counting) {
		for want, o := range map[string]httplimit.Options{
			`"year";q=2;w=31536000`: {Domain: "api", Descriptors: byCustomer},
			`"year";q=100;w=31536000;qu="hits"`: {
				Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "tokens")}},
				Cost:   func(*http.Request) limits.Amount { return limits.Amount{Hits: 50} },
				Actual: func(*http.Request, int, int64) limits.Amount { return limits.Amount{Hits: 50} },
			},
		} {
			url := serve(t, httplimit.New(l, o)(http.HandlerFunc(hello)))
			for i := range 3 {
				answer, _ := get(t, url, "X-Api-Key", "ann")
				if answer.Header.Get("RateLimit-Policy") != want || answer.Header.Get("RateLimit-Limit") != "" {
					t.Errorf("%v, want %s", answer.Header, want)
				}
				if denied := answer.StatusCode == http.StatusTooManyRequests; denied != (i == 2) || denied != (answer.Header.Get("Retry-After") != "") {
					t.Errorf("%s %v", answer.Status, answer.Header)
				}
			}
		}
	})
}

// The denial of a request larger than its limit has no time for a retry.
func TestNever(t *testing.T) { gatetest.Each(t, gatetest.Rules, testNever) }

func testNever(t *testing.T, l gatetest.Counting) {
	limit := httplimit.New(l, httplimit.Options{
		Domain: "api", Descriptors: byCustomer, Cost: func(*http.Request) limits.Amount { return limits.Amount{Hits: 3} },
	})
	answer, _ := get(t, serve(t, limit(http.HandlerFunc(hello))), "X-Api-Key", "ann")
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header["Retry-After"] != nil {
		t.Errorf("%s %v", answer.Status, answer.Header)
	}
}

func TestKeys(t *testing.T) {
	claim := func(r *http.Request) (string, bool) { return "ann", r.Header.Get("Authorization") != "" }
	long := strings.Repeat("x", 1000)
	for _, c := range []struct {
		name    string
		keys    []httplimit.Descriptor
		path    string
		headers []string
		want    string
	}{
		{"a header", byCustomer, "/", []string{"X-Api-Key", "ann"}, "[{customer ann}]"},
		{"several lines", byCustomer, "/", []string{"X-Api-Key", "ann", "X-Api-Key", "bob"}, "[{customer ann}]"},
		{"a missing header", byCustomer, "/", nil, "none"},
		{"an empty header", byCustomer, "/", []string{"X-Api-Key", ""}, "none"},
		{"a value for a missing one", []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "customer").Or("nobody")}}, "/", nil, "[{customer nobody}]"},
		{"one of two descriptors", []httplimit.Descriptor{byCustomer[0], {httplimit.Method("method")}}, "/", nil, "[{method GET}]"},
		{"two descriptors", []httplimit.Descriptor{byCustomer[0], {httplimit.Method("method")}}, "/", []string{"X-Api-Key", "ann"}, "[{customer ann}] [{method GET}]"},
		{"one of two keys", []httplimit.Descriptor{{httplimit.Method("method"), httplimit.Header("X-Api-Key", "customer")}}, "/", nil, "none"},
		{"a path", []httplimit.Descriptor{{httplimit.Path("path")}}, "/a%20b/c?d=e", nil, "[{path /a b/c}]"},
		{"a function", []httplimit.Descriptor{{httplimit.Func("sub", claim)}}, "/", []string{"Authorization", "Bearer x"}, "[{sub ann}]"},
		{"a function without a value", []httplimit.Descriptor{{httplimit.Func("sub", claim)}}, "/", nil, "none"},
		{"a secret", []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "customer").Hashed().Or("nobody")}}, "/", []string{"X-Api-Key", "s3cret"}, "[{customer sha256:HsHCa1DV08WNlYMYGvgHZlX-}]"},
		{"no secret", []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "customer").Hashed().Or("nobody")}}, "/", nil, "[{customer nobody}]"},
		{"a long value", byCustomer, "/", []string{"X-Api-Key", long}, "[{customer sha256:RPg1RJSlugO6F5Ko0-nFNMR6}]"},
		{"not UTF-8", byCustomer, "/", []string{"X-Api-Key", "a\xff"}, "[{customer sha256:jdBrWra1lCV-QbfY3UQKQGLt}]"},
		{"the address of the peer", []httplimit.Descriptor{{httplimit.RemoteAddress("address")}}, "/", []string{"X-Forwarded-For", "192.0.2.1"}, "[{address 127.0.0.1}]"},
		{"the address behind a proxy", []httplimit.Descriptor{{httplimit.RemoteAddress("address", netip.MustParsePrefix("127.0.0.0/8"))}}, "/",
			[]string{"X-Forwarded-For", "203.0.113.9", "X-Forwarded-For", "198.51.100.7, 127.0.0.3", "Forwarded", "for=203.0.113.9"}, "[{address 198.51.100.7}]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &gatetest.Decider{Answer: limits.Decision{Allowed: true}}
			url := serve(t, httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: c.keys})(http.HandlerFunc(hello)))
			if answer, _ := get(t, url+c.path, c.headers...); answer.StatusCode != http.StatusOK {
				t.Error(answer.Status)
			}
			if got := a.Entries(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestHost(t *testing.T) {
	a := &gatetest.Decider{Answer: limits.Decision{Allowed: true}}
	h := httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Host("host")}}})(http.HandlerFunc(hello))
	for host, want := range map[string]string{"Shop.Example:8080": "shop.example", "shop.example": "shop.example", "[2001:db8::1]:80": "2001:db8::1"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Host = host
		h.ServeHTTP(httptest.NewRecorder(), r)
		if got := a.Entries(); got != "[{host "+want+"}]" {
			t.Errorf("%s: %s", host, got)
		}
	}
}

// A client cannot have more than its limit by writing other addresses into X-Forwarded-For.
func TestSpoofedAddress(t *testing.T) {
	gatetest.SpoofedAddress(t, func(d limits.Decider, trusted []netip.Prefix) func(string) bool {
		limit := httplimit.New(d, httplimit.Options{Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.RemoteAddress("address", trusted...)}}})
		url := serve(t, limit(http.HandlerFunc(hello)))
		return func(forwarded string) bool {
			answer, _ := get(t, url, "X-Forwarded-For", forwarded)
			return answer.StatusCode == http.StatusOK
		}
	})
}

func TestNoDecision(t *testing.T) {
	unavailable := func(err error) bool { return strings.HasPrefix(err.Error(), "503 ") }
	gatetest.NoDecision(t, unavailable, func(d limits.Decider, onFailure limits.OnFailure, log *slog.Logger) error {
		limit := httplimit.New(d, httplimit.Options{Domain: "api", Descriptors: byCustomer, Logger: log, OnFailure: onFailure})
		answer, body := get(t, serve(t, limit(http.HandlerFunc(hello))), "X-Api-Key", "ann")
		if answer.StatusCode == http.StatusOK && body == "hello" {
			return nil
		}
		if answer.Header["Retry-After"] != nil {
			t.Errorf("it says when to come back: %v", answer.Header)
		}
		return errors.New(answer.Status + ": " + body)
	})
}

func TestPattern(t *testing.T) {
	a := &gatetest.Decider{Answer: limits.Decision{Allowed: true}}
	keys := []httplimit.Descriptor{{httplimit.Pattern("route").Or("no route")}}
	limit := httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: keys})
	routes := func(h http.Handler) *http.ServeMux {
		m := http.NewServeMux()
		m.Handle("GET /search/{what}", h)
		m.Handle("/users/", h)
		return m
	}
	plain := routes(http.HandlerFunc(hello))
	between := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { plain.ServeHTTP(w, r) })
	nested := http.NewServeMux()
	nested.Handle("/", limit(plain))
	for name, h := range map[string]http.Handler{
		"in front of the mux": limit(plain),
		"behind the mux":      routes(limit(http.HandlerFunc(hello))),
		"in front of another": httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: keys, Mux: plain})(between),
		"between two":         nested,
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, h)
			get(t, url+"/search/shoes?q=1")
			if got := a.Entries(); got != "[{route GET /search/{what}}]" {
				t.Error(got)
			}
			get(t, url+"/users/7")
			if got := a.Entries(); got != "[{route /users/}]" {
				t.Error(got)
			}
			get(t, url+"/nothing/here")
			switch got := a.Entries(); name {
			case "behind the mux":
				if got != "none" {
					t.Error(got)
				}
			case "between two":
				if got != "[{route /}]" {
					t.Error(got)
				}
			default:
				if got != "[{route no route}]" {
					t.Error(got)
				}
			}
		})
	}
}

func TestOwnDenial(t *testing.T) {
	a := &gatetest.Decider{Answer: limits.Decision{RetryAfter: 1500 * time.Millisecond}}
	limit := httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: byCustomer, Denied: func(w http.ResponseWriter, _ *http.Request, d limits.Decision) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = fmt.Fprintf(w, `{"title": "too many requests", "status": 429, "detail": "come back in %s"}`, d.RetryAfter)
	}})
	answer, body := get(t, serve(t, limit(http.HandlerFunc(hello))), "X-Api-Key", "ann")
	if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") != "2" || !strings.Contains(body, "1.5s") || answer.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %v %s", answer.Status, answer.Header, body)
	}
}

// A delayed request waits, and is denied immediately if its turn comes after its deadline.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &gatetest.Decider{Answer: limits.Decision{Allowed: true, Delay: 2 * time.Second, Headers: []limits.Header{{Name: "x-ratelimit-delay-ms", Value: "2000"}}}}
		h := httplimit.New(a, httplimit.Options{Domain: "api", Descriptors: byCustomer})(http.HandlerFunc(hello))
		ask := func(ctx context.Context) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
			r.Header.Set("X-Api-Key", "ann")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		start := time.Now()
		if w := ask(t.Context()); w.Code != 200 || time.Since(start) != 2*time.Second || w.Header().Get("X-RateLimit-Delay-Ms") != "" {
			t.Errorf("%d after %s, %v", w.Code, time.Since(start), w.Header())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if w := ask(ctx); w.Code != 429 || time.Since(start) != 0 || w.Header().Get("Retry-After") != "2" {
			t.Errorf("%d after %s, %v", w.Code, time.Since(start), w.Header())
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if w := ask(ctx); w.Code != 503 || w.Body.String() == "hello" {
			t.Errorf("a client that went away: %d %s", w.Code, w.Body)
		}
	})
}

// While a request runs, its estimated cost is reserved. At its end the real cost is charged.
func TestActualCost(t *testing.T) { gatetest.Each(t, gatetest.Rules, testActualCost) }

func testActualCost(t *testing.T, l gatetest.Counting) {
	limit := httplimit.New(l, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "tokens")}},
		Cost:        func(*http.Request) limits.Amount { return limits.Amount{Hits: 50} },
		Actual: func(r *http.Request, status int, bytes int64) limits.Amount {
			switch {
			case r.URL.Path == "/panic":
				t.Error("a request that used nothing is charged")
			case status >= 500:
				return limits.Amount{}
			}
			return limits.Amount{Hits: uint64(bytes)}
		},
	})
	url := serve(t, limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := gatetest.Left(t, l); n > 50 {
			t.Errorf("%s: while it runs, %d tokens are left", r.URL.Path, n)
		}
		switch r.URL.Path {
		case "/write":
			_, _ = io.WriteString(w, "12345")
		case "/nothing":
		case "/error":
			http.Error(w, "broken", http.StatusInternalServerError)
		case "/panic":
			panic("broken")
		case "/abort": // httputil.ReverseProxy panics like this when its client goes away
			_, _ = io.WriteString(w, "1234567")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/stream":
			for range 3 {
				_, _ = io.WriteString(w, "1")
				w.(http.Flusher).Flush()
			}
		case "/copy":
			if _, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("1234")); err != nil {
				t.Error(err)
			}
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "1")
		}
	})))
	want := gatetest.Left(t, l)
	for _, c := range []struct {
		path string
		cost uint64
		body string // empty if the connection ends
	}{
		{"/write", 5, "12345"}, {"/nothing", 0, "-"}, {"/error", 0, "broken\n"}, {"/panic", 0, ""}, {"/abort", 7, ""},
		{"/stream", 3, "111"}, {"/copy", 4, "1234"}, {"/hints", 0, "1"},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url+c.path, http.NoBody)
		r.Header.Set("X-Api-Key", "ann")
		var body []byte
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			body, err = io.ReadAll(answer.Body)
			answer.Body.Close()
		}
		if (err != nil) != (c.body == "") || err == nil && c.body != "-" && string(body) != c.body {
			t.Errorf("%s: %q %v", c.path, body, err)
		}
		want -= c.cost
		if c.body == "" { // the client notices the end before the handler has returned
			redistest.Eventually(t, "the charge", func(context.Context) error {
				if got := gatetest.Left(t, l); got != want {
					return fmt.Errorf("%d tokens are left, want %d", got, want)
				}
				return nil
			})
		}
		if got := gatetest.Left(t, l); got != want {
			t.Errorf("%s: %d tokens are left, want %d", c.path, got, want)
		}
	}
}

// A request with more than is left is denied before it runs.
func TestNoRoomToReserve(t *testing.T) { gatetest.Each(t, gatetest.Rules, testNoRoomToReserve) }

func testNoRoomToReserve(t *testing.T, l gatetest.Counting) {
	url := serve(t, httplimit.New(l, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "tokens")}},
		Cost:        func(*http.Request) limits.Amount { return limits.Amount{Hits: 101} },
		Actual:      func(*http.Request, int, int64) limits.Amount { return limits.Amount{Hits: 1} },
	})(http.HandlerFunc(hello)))
	if answer, _ := get(t, url, "X-Api-Key", "ann"); answer.StatusCode != http.StatusTooManyRequests || gatetest.Left(t, l) != 100 {
		t.Errorf("%s, %d left", answer.Status, gatetest.Left(t, l))
	}
}

// WebSockets and the like take over the connection.
func TestHijack(t *testing.T) { gatetest.Each(t, gatetest.Rules, testHijack) }

func testHijack(t *testing.T, l gatetest.Counting) {
	limit := httplimit.New(l, httplimit.Options{
		Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Api-Key", "tokens")}},
		Actual: func(*http.Request, int, int64) limits.Amount { return limits.Amount{Hits: 1} },
	})
	for name, hijack := range map[string]func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){
		"interface": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() },
		"controller": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		},
	} {
		url := serve(t, limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := hijack(w)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 299 Mine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			conn.Close()
		})))
		if answer, _ := get(t, url, "X-Api-Key", "ann"); answer.StatusCode != 299 {
			t.Errorf("%s: %s", name, answer.Status)
		}
	}
	w := httptest.NewRecorder() // it has no Hijack, like HTTP/2
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.Header.Set("X-Api-Key", "ann")
	limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(http.Hijacker); ok {
			t.Error("there is a Hijack that cannot work")
		}
	})).ServeHTTP(w, r)
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for want, o := range map[string]httplimit.Options{
		"Domain is empty": {Descriptors: byCustomer},
		"no Descriptors":  {Domain: "api"},
		"has no keys":     {Domain: "api", Descriptors: []httplimit.Descriptor{{}}},
		"a Key is empty":  {Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Key{}}}},
		"limits.Reserver": {Domain: "api", Descriptors: byCustomer, Actual: func(*http.Request, int, int64) limits.Amount { return limits.Amount{} }},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			}()
			httplimit.New(&gatetest.Decider{}, o)
		}()
	}
}

func TestProblem(t *testing.T) {
	const rules = `
domain: api
headers: [ietf]
descriptors:
  - key: customer
    value: ann
    rate_limit: {name: yearly, unit: year, requests_per_unit: 0}
  - key: customer
    rate_limit: {name: never, unit: second, requests_per_unit: 0, penalty: 1h}
`
	gatetest.Each(t, rules, func(t *testing.T, l gatetest.Counting) {
		limit := httplimit.New(l, httplimit.Options{Domain: "api", Descriptors: byCustomer, Denied: httplimit.Problem})
		url := serve(t, limit(http.HandlerFunc(hello)))
		for customer, want := range map[string]string{
			"ann": `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"too many requests","status":429,"violated-policies":["yearly"]}`,
			"bob": `{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"too many requests","status":429,"violated-policies":["never"]}`,
		} {
			answer, body := get(t, url, "X-Api-Key", customer)
			if answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Content-Type") != "application/problem+json" || strings.TrimSpace(body) != want {
				t.Errorf("%s: %s %v %s", customer, answer.Status, answer.Header, body)
			}
		}
	})
	for _, c := range []struct {
		decision limits.Decision
		status   int
		want     string
	}{
		{limits.Decision{Source: limits.FailClosed}, 503, `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"the rate limit cannot be checked","status":503}`},
		{limits.Decision{Source: limits.OnError}, 429, `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"too many requests","status":429}`},
		{limits.Decision{Headers: []limits.Header{{Name: "RateLimit", Value: "no text"}}}, 429, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"too many requests","status":429}`},
	} {
		w := httptest.NewRecorder()
		httplimit.Problem(w, nil, c.decision)
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.want {
			t.Errorf("%+v: %d %s", c.decision, w.Code, w.Body)
		}
	}
}

// A limit of requests at the same time: the middleware takes a place for each request and gives it back, even if
// another limit denies the request or its handler panics.
func TestPlaces(t *testing.T) {
	l, err := ratelimit.New("api",
		ratelimit.Rule{Key: "customer", Limit: ratelimit.AtOnce(1, time.Hour)},
		ratelimit.Rule{Key: "total", Limit: ratelimit.Per(3, 365*24*time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	inside, leave := make(chan struct{}), make(chan struct{})
	h := httplimit.New(l, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("Customer", "customer")}, {httplimit.Func("total", func(*http.Request) (string, bool) { return "all", true })}},
	})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			inside <- struct{}{}
			<-leave
		case "/panic":
			panic(http.ErrAbortHandler)
		}
	}))
	status := func(path string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Customer", "ann")
		w := httptest.NewRecorder()
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(w, r)
		}()
		return w.Code
	}
	first := make(chan int)
	go func() { first <- status("/slow") }()
	<-inside
	if got := status("/"); got != http.StatusTooManyRequests {
		t.Errorf("a second request at the same time: %d", got)
	}
	close(leave)
	if got := <-first; got != http.StatusOK {
		t.Errorf("the first request: %d", got)
	}
	for i, path := range []string{"/panic", "/", "/", "/"} { // the second and third of all, then the total denies
		want := http.StatusOK
		if i > 1 {
			want = http.StatusTooManyRequests
		}
		if got := status(path); got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
	d, err := l.Reserve(t.Context(), limits.NewRequest("api", "customer", "ann"), limits.ReserveOptions{})
	if err != nil || !d.Decision.Allowed {
		t.Errorf("a place was not given back: %+v %v", d, err)
	}
}

// Nine lines limit each API key.
func TestByKey(t *testing.T) {
	perKey, err := ratelimit.NewKeyed(ratelimit.Bucket(2, 365*24*time.Hour, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = perKey.Close() }()
	h := httplimit.ByKey(perKey, httplimit.Header("X-Api-Key", "id").Hashed().Or("none"))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, want := range []string{"200 1", "200 0", "429 0", "200 1"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if i < 3 {
			r.Header.Set("X-Api-Key", "secret")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("RateLimit-Remaining")); got != want || (w.Code == 429) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("request %d: %s %v, want %s", i, got, w.Header(), want)
		}
	}
}

// A mistake in the options panics when the program starts.
func TestMistakesInOptions(t *testing.T) {
	l, err := ratelimit.New("api", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerDay(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for want, make := range map[string]func(){
		`no rule of domain "api" can match the keys custmer: no rule names the key "custmer" here; the keys are "customer"`: func() {
			httplimit.New(l, httplimit.Options{Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Path("custmer")}}})
		},
		`no rule of domain "apj"`: func() {
			httplimit.New(l, httplimit.Options{Domain: "apj", Descriptors: []httplimit.Descriptor{{httplimit.Path("customer")}}})
		},
		"the Decider is nil": func() {
			httplimit.New(nil, httplimit.Options{Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Path("customer")}}})
		},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, want) {
					t.Errorf("%s", text)
				}
			}()
			make()
		})
	}
}
