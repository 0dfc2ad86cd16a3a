package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate/gatetest"
)

// pipes is a listener without sockets, so that time stands still in tests.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// answer is one answer of a server.
type answer struct {
	status  int
	headers http.Header
}

// denying runs a test with a server that gives these answers and then 200. It returns the times at which requests came,
// and their bodies.
func denying(t *testing.T, tr *httplimit.Transport, answers []answer, test func(t *testing.T, c *http.Client)) (times []time.Duration, bodies []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := make(pipes)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			times, bodies = append(times, time.Since(start)), append(bodies, string(body))
			if len(times) <= len(answers) {
				a := answers[len(times)-1]
				for name, v := range a.headers {
					w.Header()[name] = v
				}
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, "denied")
				if _, endless := a.headers["Endless"]; endless {
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				}
			}
		})}
		go func() { _ = server.Serve(p) }()
		base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			p <- a
			return b, nil
		}}
		tr.Base = base
		client := &http.Client{Transport: tr}
		test(t, client)
		client.CloseIdleConnections()
		close(p)
		_ = server.Close()
	})
	return times, bodies
}

func after(text string) http.Header { return http.Header{"Retry-After": {text}} }

// A client repeats a request after the server's time, and not exactly then.
func TestRepeats(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 8, 0, time.UTC) // synctest starts at the year 2000
	for _, c := range []struct {
		name    string
		headers http.Header
		from    time.Duration
	}{
		{"seconds", after("7"), 7 * time.Second},
		{"zero", after("0"), 0},
		{"a date", after(at.Format(http.TimeFormat)), 8 * time.Second},
		{"the date of a server whose clock is an hour ahead", http.Header{
			"Retry-After": {at.Add(time.Hour).Format(http.TimeFormat)}, "Date": {at.Add(time.Hour - 3*time.Second).Format(http.TimeFormat)},
		}, 3 * time.Second},
		{"a date that is over", after("Fri, 31 Dec 1999 00:00:00 GMT"), 0},
		{"decimals, as Shopify sends them", after("2.0"), 2 * time.Second},
		{"half a second", after("0.5"), 500 * time.Millisecond},
		{"another header", http.Header{"Ratelimit-Reset": {"6"}}, 6 * time.Second},
		{"Retry-After and another header", http.Header{"Ratelimit-Reset": {"6"}, "Retry-After": {"3"}}, 3 * time.Second},
		{"a header that cannot be read, and another one", http.Header{"X-Rate-Limit-Reset": {"later"}, "Ratelimit-Reset": {"6"}}, 6 * time.Second},
		{"a Unix time", http.Header{"X-Rate-Limit-Reset": {strconv.FormatInt(at.Unix(), 10)}}, 8 * time.Second},
		{"no header", nil, time.Second},
		{"a header that is not named", http.Header{"X-Wait": {"9"}}, time.Second},
		{"garbage", after("soon"), time.Second},
		{"no number", after("."), time.Second},
		{"infinity", after("inf"), time.Second},
		{"a negative number", after("-5"), time.Second},
	} {
		times, _ := denying(t, &httplimit.Transport{WaitHeaders: []string{"x-rate-limit-reset", "RateLimit-Reset"}}, []answer{{429, c.headers}}, func(t *testing.T, client *http.Client) {
			r, err := client.Get("http://server/")
			if err != nil || r.StatusCode != http.StatusOK {
				t.Fatalf("%s: %+v %v", c.name, r, err)
			}
			r.Body.Close()
		})
		if len(times) != 2 || times[1] < c.from || times[1] >= c.from+250*time.Millisecond {
			t.Errorf("%s: requests at %v", c.name, times)
		}
	}
}

// Without a word of the server, each wait is twice as long as the one before.
func TestWaitsGrow(t *testing.T) {
	denials := []answer{{429, nil}, {429, nil}, {429, nil}}
	times, _ := denying(t, &httplimit.Transport{FirstWait: 3 * time.Second}, denials, func(t *testing.T, client *http.Client) {
		r, err := client.Get("http://server/")
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%+v %v", r, err)
		}
		r.Body.Close()
	})
	if len(times) != 4 {
		t.Fatalf("requests at %v", times)
	}
	for i, least := range []time.Duration{3 * time.Second, 6 * time.Second, 12 * time.Second} {
		if wait := times[i+1] - times[i]; wait < least || wait > least+2*time.Second {
			t.Errorf("wait %d: %v", i, wait)
		}
	}
}

// A client repeats a request that was answered with 403 if the options ask for it and the answer has a time.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		transport *httplimit.Transport
		headers   http.Header
		requests  int
	}{
		{&httplimit.Transport{}, after("1"), 1},
		{&httplimit.Transport{Forbidden: true}, nil, 1},
		{&httplimit.Transport{Forbidden: true}, after("1"), 2},
	} {
		times, _ := denying(t, c.transport, []answer{{403, c.headers}}, func(t *testing.T, client *http.Client) {
			r, err := client.Get("http://server/")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
		})
		if len(times) != c.requests {
			t.Errorf("%+v: requests at %v", c.headers, times)
		}
	}
}

// Clients that were denied together do not come back together.
func TestRepetitionsDiffer(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 50 {
		times, _ := denying(t, &httplimit.Transport{}, []answer{{429, after("1")}}, func(t *testing.T, client *http.Client) {
			r, err := client.Get("http://server/")
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
		})
		seen[times[1].Truncate(time.Millisecond)] = true
	}
	if len(seen) < 25 {
		t.Errorf("%d different times", len(seen))
	}
}

// These denials are returned immediately.
func TestReturnsDenials(t *testing.T) {
	body := func(_ *testing.T, r *http.Request) { // a body that cannot be sent again
		r.Body = io.NopCloser(strings.NewReader("text"))
	}
	deadline := func(t *testing.T, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		t.Cleanup(cancel)
		*r = *r.WithContext(ctx)
	}
	for _, c := range []struct {
		name   string
		tr     *httplimit.Transport
		answer answer
		change func(*testing.T, *http.Request)
	}{
		{"a body that cannot be sent again", &httplimit.Transport{}, answer{429, after("1")}, body},
		{"after the deadline", &httplimit.Transport{}, answer{429, after("6")}, deadline},
		{"more than MaxWait", &httplimit.Transport{}, answer{429, after("31")}, nil},
		{"far more than MaxWait", &httplimit.Transport{}, answer{429, after("9223372036854775807")}, nil},
		{"more than the MaxWait that is set", &httplimit.Transport{MaxWait: time.Second}, answer{429, after("2")}, nil},
		{"one attempt", &httplimit.Transport{Attempts: 1}, answer{429, after("1")}, nil},
		{"503", &httplimit.Transport{}, answer{503, after("1")}, nil},
		{"503 without Retry-After", &httplimit.Transport{Unavailable: true}, answer{503, nil}, nil},
		{"503 to a POST", &httplimit.Transport{Unavailable: true}, answer{503, after("1")}, func(_ *testing.T, r *http.Request) { r.Method = http.MethodPost }},
		{"500", &httplimit.Transport{Unavailable: true}, answer{500, after("1")}, nil},
	} {
		times, _ := denying(t, c.tr, []answer{c.answer, c.answer}, func(t *testing.T, client *http.Client) {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", http.NoBody)
			if c.change != nil {
				c.change(t, r)
			}
			start := time.Now()
			got, err := client.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			text, _ := io.ReadAll(got.Body)
			got.Body.Close()
			if got.StatusCode != c.answer.status || string(text) != "denied" || time.Since(start) != 0 {
				t.Errorf("%s: %s %q after %s", c.name, got.Status, text, time.Since(start))
			}
		})
		if len(times) != 1 {
			t.Errorf("%s: requests at %v", c.name, times)
		}
	}
}

func TestUnavailable(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		times, _ := denying(t, &httplimit.Transport{Unavailable: true}, []answer{{503, after("2")}}, func(t *testing.T, client *http.Client) {
			r, _ := http.NewRequestWithContext(t.Context(), method, "http://server/", strings.NewReader("x"))
			r.Header.Set("Idempotency-Key", "1")
			got, err := client.Do(r)
			if err != nil || got.StatusCode != http.StatusOK {
				t.Fatalf("%+v %v", got, err)
			}
			got.Body.Close()
		})
		if len(times) != 2 || times[1] < 2*time.Second {
			t.Errorf("%s: requests at %v", method, times)
		}
	}
}

// A body is sent again, as often as is allowed.
func TestSendsBodyAgain(t *testing.T) {
	denials := []answer{{429, after("1")}, {429, after("1")}, {429, nil}, {429, nil}}
	times, bodies := denying(t, &httplimit.Transport{}, denials, func(t *testing.T, client *http.Client) {
		r, err := client.Post("http://server/", "text/plain", strings.NewReader("text"))
		if err != nil || r.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("%+v %v", r, err)
		}
		r.Body.Close()
	})
	if len(times) != 4 || fmt.Sprint(bodies) != "[text text text text]" {
		t.Errorf("requests at %v with %q", times, bodies)
	}
}

// A client does not wait for the end of a denial, and repeats its request after the server's time.
func TestDenialWithoutAnEnd(t *testing.T) {
	denied := answer{429, http.Header{"Retry-After": {"7"}, "Endless": nil}}
	times, _ := denying(t, &httplimit.Transport{}, []answer{denied}, func(t *testing.T, client *http.Client) {
		r, err := client.Get("http://server/")
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%+v %v", r, err)
		}
		r.Body.Close()
	})
	if len(times) != 2 || times[1] < 7*time.Second || times[1] >= 7250*time.Millisecond {
		t.Errorf("requests at %v", times)
	}
}

// A request that is cancelled while it waits fails immediately.
func TestCancelled(t *testing.T) {
	times, _ := denying(t, &httplimit.Transport{}, []answer{{429, after("20")}}, func(t *testing.T, client *http.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", http.NoBody)
		start := time.Now()
		if _, err := client.Do(r); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
	if len(times) != 1 {
		t.Errorf("requests at %v", times)
	}
}

// script gives one answer after the other, and then the last one again.
type script struct {
	answers []limits.Decision
	asked   int
}

func (s *script) Decide(context.Context, *limits.Request) (limits.Decision, error) {
	d := s.answers[min(s.asked, len(s.answers)-1)]
	s.asked++
	if d.Err != nil {
		return limits.Decision{}, d.Err
	}
	return d, nil
}

func TestLimitsWhatItSends(t *testing.T) {
	to := []httplimit.Descriptor{{httplimit.Host("to")}}
	d := &script{answers: []limits.Decision{{RetryAfter: 2 * time.Second}, {Allowed: true}, {RetryAfter: 3 * time.Second}, {Allowed: true, Delay: time.Second}}}
	times, _ := denying(t, &httplimit.Transport{Decider: d, Domain: "out", Descriptors: to}, []answer{{429, after("1")}}, func(t *testing.T, client *http.Client) {
		r, err := client.Get("http://server/")
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%+v %v", r, err)
		}
		r.Body.Close()
	})
	if len(times) != 2 || times[0] < 2*time.Second || times[0] > 2100*time.Millisecond || times[1]-times[0] < 5*time.Second || times[1]-times[0] > 5500*time.Millisecond {
		t.Errorf("requests at %v", times)
	}
	for _, c := range []struct {
		answer    limits.Decision
		onFailure limits.OnFailure
		want      error
	}{
		{limits.Decision{RetryAfter: limits.Never}, limits.OnFailureDefault, limits.ErrNever},
		{limits.Decision{RetryAfter: time.Minute}, limits.OnFailureDefault, limits.ErrTooLong},
		{limits.Decision{Err: io.ErrUnexpectedEOF}, limits.OnFailureError, io.ErrUnexpectedEOF},
		{limits.Decision{Err: io.ErrUnexpectedEOF}, limits.OnFailureDefault, nil},
	} {
		tr := &httplimit.Transport{Decider: &script{answers: []limits.Decision{c.answer}}, Domain: "out", Descriptors: to, OnFailure: c.onFailure, Logger: slog.New(slog.DiscardHandler)}
		times, _ := denying(t, tr, nil, func(t *testing.T, client *http.Client) {
			client.Timeout = 10 * time.Second
			r, err := client.Post("http://server/", "text/plain", strings.NewReader("text"))
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err == nil {
				r.Body.Close()
			}
		})
		if sent := len(times) > 0; sent != (c.want == nil) {
			t.Errorf("%v: requests at %v", c.want, times)
		}
	}
}

// body is a body that records whether it was closed.
type body struct {
	io.Reader
	closed *int
}

func (b body) Close() error {
	*b.closed++
	return nil
}

// tripper sends requests.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Each attempt has a separate body, and every body is closed: of answers, and of requests that are not sent.
func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made, closed, answered, closedAnswers int
		var sent []string
		tr := &httplimit.Transport{Base: tripper(func(r *http.Request) (*http.Response, error) {
			text, _ := io.ReadAll(r.Body)
			_ = r.Body.Close()
			sent = append(sent, string(text))
			answered++
			return &http.Response{StatusCode: http.StatusTooManyRequests, Body: body{strings.NewReader("denied"), &closedAnswers}}, nil
		})}
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/", http.NoBody)
		r.GetBody = func() (io.ReadCloser, error) {
			if made++; made == 3 {
				cancel() // while it waits for the third attempt
			}
			return body{strings.NewReader("text"), &closed}, nil
		}
		r.Body, _ = r.GetBody()
		if _, err := tr.RoundTrip(r); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if fmt.Sprint(sent) != "[text text]" || made != 3 || closed != made || closedAnswers != answered {
			t.Errorf("sent %q; %d bodies, %d closed; %d answers, %d closed", sent, made, closed, answered, closedAnswers)
		}
		again := &httplimit.Transport{
			Base: tr.Base, Decider: &script{answers: []limits.Decision{{RetryAfter: limits.Never}}},
			Domain: "out", Descriptors: []httplimit.Descriptor{{httplimit.Host("to")}},
		}
		r.Body = body{strings.NewReader("text"), &closed}
		if _, err := again.RoundTrip(r); !errors.Is(err, limits.ErrNever) || closed != made+1 {
			t.Errorf("%v; %d closed", err, closed)
		}
	})
}

// neverSent is a Base that must not be reached.
type neverSent struct{ t *testing.T }

func (n neverSent) RoundTrip(*http.Request) (*http.Response, error) {
	n.t.Error("a request was sent without a limit")
	return nil, errors.New("sent")
}

// A mistake in the options panics on every request, also after somebody has recovered from the first panic: no request
// goes out unlimited.
func TestTransportWithMistakesSendsNothing(t *testing.T) {
	tr := &httplimit.Transport{Base: neverSent{t}, Decider: &gatetest.Decider{}, Domain: ""}
	for i := range 3 {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("request %d does not panic", i+1)
				}
			}()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1", nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = tr.RoundTrip(r)
		}()
	}
}
