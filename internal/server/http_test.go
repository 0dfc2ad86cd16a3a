package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// byDomain answers as the domain asks.
func byDomain(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	switch req.Domain {
	case "":
		return &limiter.InvalidError{Field: "domain", Message: "rate limit domain must not be empty"}
	case "over":
		*d = *smallDecision()
		d.Code, d.Statuses[0].Code = limiter.OverLimit, limiter.OverLimit
		d.Headers = []limiter.Header{{Key: "RateLimit-Limit", Value: "10"}, {Key: "Retry-After", Value: "42"}}
		return nil
	case "down":
		return errors.New("backend unavailable")
	case "late":
		return context.DeadlineExceeded
	case "bomb":
		panic("kaboom")
	}
	return passAll(ctx, now, req, d)
}

func TestJSON(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Decider: decider(byDomain), Requests: Requests{MaxBytes: 10_000}})
	const one = `"descriptors":[{"entries":[{"key":"k","value":"v"}]}]`
	for _, tt := range []struct {
		name, method, body string
		code               int
		answer             string // part of it
	}{
		{"passes", "POST", `{"domain":"d",` + one + `}`, 200, `{"overallCode":"OK","statuses":[{"code":"OK"}]}`},
		{"any method", "GET", `{"domain":"d",` + one + `}`, 200, `"OK"`},
		{"any method", "PUT", `{"domain":"d",` + one + `}`, 200, `"OK"`},
		{"camelCase", "POST", `{"domain":"d","hitsAddend":3,` + one + `}`, 200, `"OK"`},
		{"snake_case", "POST", `{"domain":"d","hits_addend":3,"descriptors":[{"hits_addend":"5","is_negative_hits":true}]}`, 200, `"OK"`},
		{"over the limit", "POST", `{"domain":"over",` + one + `}`, 429, `"overallCode":"OVER_LIMIT"`},
		{"unknown field", "POST", `{"domain":"d","dscriptors":[]}`, 400, `dscriptors`},
		{"not JSON", "POST", `domain: d`, 400, ""},
		{"nothing", "POST", ``, 400, ""},
		{"not UTF-8", "POST", "{\"domain\":\"\xff\"}", 400, ""},
		{"no domain", "POST", `{` + one + `}`, 400, "rate limit domain must not be empty"},
		{"too many descriptors", "POST", `{"domain":"d","descriptors":[{}` + strings.Repeat(",{}", 256) + `]}`, 400, "descriptors: more than 256"},
		{"too large", "POST", `{"domain":"` + strings.Repeat("d", 10_000) + `"}`, 413, "too large"},
		{"backend down", "POST", `{"domain":"down",` + one + `}`, 503, "backend unavailable"},
		{"backend late", "POST", `{"domain":"late",` + one + `}`, 503, ""},
		{"panic", "POST", `{"domain":"bomb",` + one + `}`, 500, "internal error"},
	} {
		t.Run(tt.name+" "+tt.method, func(t *testing.T) {
			code, header, body := request(t, tt.method, r.HTTPAddr, "/json", strings.NewReader(tt.body))
			if code != tt.code || !strings.Contains(body, tt.answer) {
				t.Errorf("got %d %s, want %d with %s", code, body, tt.code, tt.answer)
			}
			want := "text/plain; charset=utf-8"
			if code == 200 || code == 429 {
				want = "application/json"
			}
			if got := header.Get("Content-Type"); got != want {
				t.Errorf("Content-Type %q, want %q", got, want)
			}
		})
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_requests_total{code=OK transport=json}`:               6,
		`ratelimitd_requests_total{code=InvalidArgument transport=json}`:  7,
		`ratelimitd_requests_total{code=Unavailable transport=json}`:      1,
		`ratelimitd_requests_total{code=DeadlineExceeded transport=json}`: 1,
		`ratelimitd_requests_total{code=Internal transport=json}`:         1,
		`ratelimitd_request_duration_seconds{transport=json}`:             16,
		`ratelimitd_panics_total`:                                         1,
	})
}

// A body of {} uses no more memory than a request that can be answered.
func TestJSONOfManyObjects(t *testing.T) {
	r := start(t, Options{})
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	body := `{"domain":"d","descriptors":[{}` + strings.Repeat(",{}", 1_390_000) + `]}`
	before := allocated()
	code, _, answer := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(body))
	if code != 400 || !strings.Contains(answer, "descriptors: more than 256 with 256 entries each") {
		t.Errorf("%d %s", code, answer)
	}
	if mib := (allocated() - before) >> 20; mib > 64 { // the messages alone would be 150
		t.Errorf("it allocated %d MiB", mib)
	}

	for text, want := range map[string]float64{
		`{}`:                             1,
		`{"a":[{},{"b":{}}]}`:            4,
		`{"a{":"{{","b\"{":"\\","c":{}}`: 2,
		`{"\u007b":"\\\"{","d":[{},{`:    3,
		``:                               0,
		`\`:                              0,
	} {
		if got := objects([]byte(text)); got != want {
			t.Errorf("%s: %v objects, want %v", text, got, want)
		}
	}
}

// Only a few large bodies are accepted concurrently, however slowly they are sent. Ordinary ones are not affected.
func TestJSONLargeBodiesAreBounded(t *testing.T) {
	t.Run("medium", func(t *testing.T) { jsonBodiesAreBounded(t, mediumBody, maxMedium) })
	t.Run("large", func(t *testing.T) { jsonBodiesAreBounded(t, largeBody, maxLarge) })
}

// jsonBodiesAreBounded checks how many requests with bodies of this size can be in flight concurrently.
func jsonBodiesAreBounded(t *testing.T, size, most int) {
	registry := prometheus.NewRegistry()
	began, end := make(chan struct{}), make(chan struct{})
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
		if req.Domain == "large" {
			began <- struct{}{}
			<-end
		}
		return passAll(ctx, now, req, d)
	})})
	value := strings.Repeat("v", size/2)
	large := `{"domain":"large","descriptors":[{"entries":[{"key":"k","value":"` + value + `"},{"key":"k","value":"` + value + `"}]}]}`
	post := func(body string) int {
		code, _, _ := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(body))
		return code
	}
	first := make(chan int, most)
	for range most {
		go func() { first <- post(large) }()
		<-began
	}
	if code := post(large); code != 503 {
		t.Errorf("one too many: %d", code)
	}
	if code := post(`{"domain":"small","descriptors":[{}]}`); code != 200 {
		t.Errorf("an ordinary one: %d", code)
	}
	checkMetrics(t, registry, map[string]float64{`ratelimitd_requests_total{code=ResourceExhausted transport=json}`: 1})
	close(end)
	for range most {
		if code := <-first; code != 200 {
			t.Errorf("one of the first: %d", code)
		}
	}
	go func() { <-began }()
	if code := post(large); code != 200 {
		t.Errorf("one after them: %d", code)
	}
}

// A body waits until there is a place to decode it.
func TestJSONBodiesDecodedAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Options
		o.setDefaults()
		m, err := newMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		connections, err := intake.NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		h := &jsonHandler{
			decider: decider(passAll), bounds: o.Requests, answers: &m.json, calls: intake.NewCalls(2, connections),
			medium: make(chan struct{}, 1), decodingSmall: make(chan struct{}, 1), decodingLarge: make(chan struct{}, 1),
		}
		h.decodingSmall <- struct{}{} // another request is being decoded
		h.decodingLarge <- struct{}{}
		answer := httptest.NewRecorder()
		go h.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(`{"domain":"d","descriptors":[{}]}`)))
		synctest.Wait()
		if answer.Body.Len() > 0 {
			t.Errorf("it was decoded at once: %s", answer.Body)
		}
		<-h.decodingSmall // small bodies do not wait for large ones
		synctest.Wait()
		if answer.Code != 200 || !strings.Contains(answer.Body.String(), `"OK"`) || len(h.decodingSmall) > 0 {
			t.Errorf("%d %s, and %d places are taken", answer.Code, answer.Body, len(h.decodingSmall))
		}
	})
}

func TestJSONAnswerIsTheResponseAndItsHeadersAreReal(t *testing.T) {
	r := start(t, Options{Decider: decider(byDomain)})
	_, header, body := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain":"over","descriptors":[{}]}`))
	var got ratelimitv3.RateLimitResponse
	if err := protojson.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	var want limiter.Decision
	if err := byDomain(t.Context(), time.Now(), &limiter.Request{Domain: "over"}, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(responseMessage(t, &want), &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if header.Get("RateLimit-Limit") != "10" || header.Get("Retry-After") != "42" {
		t.Errorf("headers %v", header)
	}
}

// net/http keeps the header of a request until it is answered and its body has ended, even without a handler. Many
// short lines need many times their bytes.
func TestHeadersOverHTTPAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(3 << 20)}, Options{Connections: Connections{MaxBytes: 16 << 20}})
	held := func() float64 { return gathered(t, registry)[`ratelimitd_client_bytes{class=http}`] }
	lines := func(bytes int) string {
		var b strings.Builder
		for i := 0; b.Len() < bytes; i++ {
			fmt.Fprintf(&b, "a%03x:\n", i)
		}
		return b.String()
	}
	send := func(path, header string) net.Conn {
		conn, err := net.Dial("tcp", r.HTTPAddr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"+header); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	answer := func(conn net.Conn) int {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := answer(send("/json", lines(40<<10)+"\r\n")); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("40 KiB of header: %d", code)
	}
	soon(t, "nothing is held", func() bool { return held() == 0 })

	// The handler waits for the body of this one.
	waiting := send("/json", lines(8<<10)+"\r\n")
	soon(t, "its header is held", func() bool { return held() > 64<<10 })
	if _, err := waiting.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if code := answer(waiting); code != http.StatusBadRequest {
		t.Error(code)
	}
	soon(t, "nothing is held after the answer", func() bool { return held() == 0 })

	// No handler waits for the body of this one, but net/http does.
	ignored := send("/", lines(8<<10)+"\r\n")
	soon(t, "its header is held", func() bool { return held() > 64<<10 })
	_ = ignored.Close()
	soon(t, "nothing is held when the connection is closed", func() bool { return held() == 0 })

	// net/http reads such a body after the answer, to continue with the next request. It does not count as a header.
	late := send("/", "\r\n"+strings.Repeat("\n", 100))
	if code := answer(late); code != http.StatusNotFound {
		t.Error(code)
	}
	long := strings.Repeat("\n", 200<<10)
	if _, err := io.WriteString(late, fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(long), long)); err != nil {
		t.Fatal(err)
	}
	if code := answer(late); code != http.StatusNotFound {
		t.Error(code)
	}
	soon(t, "nothing is held while the connection waits for a request", func() bool { return held() == 0 })

	// Endless headers.
	for range 16 {
		send("/json", lines(12<<10))
	}
	soon(t, "connections are closed", func() bool {
		return gathered(t, registry)[`ratelimitd_connections_closed_total{listener=http reason=bytes}`] >= 2
	})
	if n := held(); n > 3<<20 {
		t.Errorf("%v bytes are held", n)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error(err)
	}
}

func TestMetricsAreServed(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Metrics: Metrics{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Fatal(err)
	}
	code, body := get(t, r.HTTPAddr, "/metrics")
	if want := `ratelimitd_requests_total{code="OK",transport="grpc"} 1`; code != 200 || !strings.Contains(body, want) {
		t.Errorf("got %d without %s:\n%s", code, want, body)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	r := start(t, Options{})
	for _, path := range []string{"/", "/metrics", "/rlconfig", "/loglevel", "/debug/pprof/"} {
		if code, body := get(t, r.HTTPAddr, path); code != http.StatusNotFound || !strings.Contains(body, "/json") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

// A request that a browser sends for a page of another origin is rejected and spends nothing; other clients are not
// affected.
func TestPagesOfOtherOrigins(t *testing.T) {
	decided := 0
	r := start(t, Options{Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
		decided++
		return passAll(ctx, now, req, d)
	})})
	const body = `{"domain": "d", "descriptors": [{"entries": [{"key": "k"}]}]}`
	for name, c := range map[string]struct {
		header map[string]string
		code   int
	}{
		"curl -d":                        {map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 200},
		"a program":                      {map[string]string{"Content-Type": "application/json"}, 200},
		"a program that says nothing":    {nil, 200},
		"a page of the same origin":      {map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://" + r.HTTPAddr.String()}, 200},
		"an old browser, same origin":    {map[string]string{"Origin": "http://" + r.HTTPAddr.String()}, 200},
		"typed into a browser":           {map[string]string{"Sec-Fetch-Site": "none"}, 200},
		"a page of another site":         {map[string]string{"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 403},
		"a page of a neighbouring site":  {map[string]string{"Sec-Fetch-Site": "same-site", "Content-Type": "application/x-www-form-urlencoded"}, 403},
		"an old browser, another origin": {map[string]string{"Origin": "https://evil.example"}, 403},
		"a page without an origin":       {map[string]string{"Origin": "null"}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			before := decided
			req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+r.HTTPAddr.String()+"/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range c.header {
				req.Header.Set(name, value)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.code || decided-before != map[int]int{200: 1, 403: 0}[c.code] {
				t.Errorf("/json: %s and %d decisions, want %d", resp.Status, decided-before, c.code)
			}
		})
	}
}

// The memory of the bodies of /json, also decoded, comes from the budget. Without room they are rejected, but small
// ones are answered.
func TestBodiesOverHTTPAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	deciding, decide := make(chan struct{}), make(chan struct{})
	r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(1 << 20)}, Options{
		Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
			if req.Domain == "slow" {
				deciding <- struct{}{}
				<-decide
			}
			return passAll(ctx, now, req, d)
		}),
	})
	held := func() float64 { return gathered(t, registry)[`ratelimitd_client_bytes{class=http}`] }
	post := func(domain string, size int) int {
		body := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":"k"}]}]}`, domain)
		resp, err := http.Post("http://"+r.HTTPAddr.String()+"/json", "application/json", strings.NewReader(body+strings.Repeat(" ", size)))
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if code := post("d", 900<<10); code != http.StatusServiceUnavailable {
		t.Errorf("a body without room: %d", code)
	}
	var slow sync.WaitGroup
	slow.Go(func() {
		if code := post("slow", 32<<10); code != http.StatusOK {
			t.Errorf("a body of 32 KiB: %d", code)
		}
	})
	<-deciding
	if n := held(); n < 32<<10 {
		t.Errorf("while a body of 32 KiB is decided, %g bytes are held", n)
	}
	if code := post("d", 100); code != http.StatusOK {
		t.Errorf("a small body: %d", code)
	}
	close(decide)
	slow.Wait()
	soon(t, "nothing is held", func() bool { return held() == 0 })
}
