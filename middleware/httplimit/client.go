package httplimit

import (
	"cmp"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

const (
	defaultAttempts  = 4
	defaultMaxWait   = 30 * time.Second
	defaultFirstWait = time.Second
	maxDrained       = 64 << 10               // bytes of a denial that are read so that its connection can be used again
	maxDraining      = 100 * time.Millisecond // longest time to read them
	// smallest number of seconds in a header that is read as a Unix time: a time in 1985, or a wait of 16 years
	leastUnixTime = 500_000_000
)

// Transport is a http.RoundTripper that obeys limits. The zero value is ready to use: it repeats a request that was
// answered with 429 after the time in Retry-After, or after FirstWait, plus a random time.
//
// It repeats only requests whose body can be sent again: without a body, or with GetBody, which http.NewRequest sets
// for buffers. If it does not repeat a request, it returns the denial immediately: after the last attempt, or if the
// deadline of the request or MaxWait would pass before the next one.
type Transport struct {
	// Base sends the requests. Default http.DefaultTransport.
	Base http.RoundTripper

	// Attempts is the most times that a request is sent. Default 4.
	Attempts int

	// MaxWait bounds the time that a request waits for all its repetitions together. Default 30 s.
	MaxWait time.Duration

	// FirstWait is how long a request waits for its first repetition if the answer has no time. Each later wait is twice
	// as long as the one before. Default 1 s.
	FirstWait time.Duration

	// WaitHeaders are read, in this order, if an answer has no Retry-After, such as "RateLimit-Reset" or
	// "X-Rate-Limit-Reset". A value is a number of seconds, with decimals or without, a Unix time or a date. Default none.
	WaitHeaders []string

	// Forbidden also repeats requests that were answered with 403 and Retry-After, as GitHub answers.
	Forbidden bool

	// Unavailable also repeats requests that were answered with 503 and Retry-After, if their method is idempotent or they
	// have the header Idempotency-Key.
	Unavailable bool

	// Decider limits the requests that are sent. Nil does not limit them. A request waits until it is allowed, before each
	// repetition too. If the wait cannot succeed, the error is limits.ErrTooLong or limits.ErrNever.
	Decider limits.Decider

	// Domain is the domain of the rules, if there is a Decider.
	Domain string

	// Descriptors define the descriptors of each request to the Decider.
	Descriptors []Descriptor

	// OnFailure is what happens to a request if the Decider returns an error. Default limits.OnFailureAllow; every other
	// value returns that error and sends nothing.
	OnFailure limits.OnFailure

	// Logger logs the errors of the Decider, at most one line a second. Default slog.Default().
	Logger *slog.Logger

	once sync.Once
	gate *gate.Gate
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.once.Do(t.begin)
	ctx := r.Context()
	unsaid := cmp.Or(t.FirstWait, defaultFirstWait) // next wait after an answer without a time
	waits := gate.Waits{Attempts: cmp.Or(t.Attempts, defaultAttempts) - 1, Left: cmp.Or(t.MaxWait, defaultMaxWait)}
	for {
		if err := t.wait(r); err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
		answer, err := t.base().RoundTrip(r)
		if err != nil || !t.repeats(r, answer) {
			return answer, err
		}
		after, said := t.waitOf(answer.Header)
		if !said {
			after, unsaid = unsaid, 2*unsaid
		}
		wait, ok := waits.Next(ctx, after)
		if !ok {
			return answer, nil
		}
		again, err := copyOf(r)
		if err != nil {
			return answer, nil //nolint:nilerr // the denial is more useful than an error about the second body
		}
		next := time.Now().Add(wait)
		drain(answer.Body)
		if err := limits.Sleep(ctx, time.Until(next)); err != nil {
			if again.Body != nil {
				_ = again.Body.Close()
			}
			return nil, err
		}
		r = again
	}
}

// drain reads the rest of a denial and closes it. Nothing else bounds the time that a body takes which does not end.
func drain(body io.ReadCloser) {
	late := time.AfterFunc(maxDraining, func() { _ = body.Close() })
	_, _ = io.CopyN(io.Discard, body, maxDrained)
	late.Stop()
	_ = body.Close()
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) begin() {
	if t.Decider != nil {
		check(t.Decider, t.Domain, t.Descriptors)
		t.gate = &gate.Gate{Decider: t.Decider, OnFailure: t.OnFailure, Logger: t.Logger}
	}
}

// wait waits until the request is allowed.
func (t *Transport) wait(r *http.Request) error {
	switch {
	case t.Decider == nil:
		return nil
	case t.gate == nil: // begin has panicked, and the caller has recovered: a request must not go out unlimited
		check(t.Decider, t.Domain, t.Descriptors)
	}
	q := request(t.Domain, t.Descriptors, r, nil)
	if q == nil {
		return nil
	}
	return t.gate.Wait(r.Context(), q)
}

// repeats reports whether a request that has this answer may be sent again.
func (t *Transport) repeats(r *http.Request, answer *http.Response) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch answer.StatusCode {
	case http.StatusTooManyRequests:
		return true
	case http.StatusForbidden:
		_, said := waitIn(answer.Header, retryAfter)
		return t.Forbidden && said
	case http.StatusServiceUnavailable:
		_, said := waitIn(answer.Header, retryAfter)
		return t.Unavailable && said && idempotent(r)
	default:
		return false
	}
}

func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	default:
		return r.Header.Get("Idempotency-Key") != ""
	}
}

const retryAfter = "Retry-After"

// waitOf returns the wait that the answer demands.
func (t *Transport) waitOf(h http.Header) (time.Duration, bool) {
	wait, said := waitIn(h, retryAfter)
	for i := 0; !said && i < len(t.WaitHeaders); i++ {
		wait, said = waitIn(h, t.WaitHeaders[i])
	}
	return wait, said
}

// waitIn reads a header: seconds, a Unix time or a date. A time is compared with the answer's Date header, if there is
// one, because the server's clock may differ from the clock of this machine. It returns false if the header is missing
// or invalid.
func waitIn(h http.Header, name string) (time.Duration, bool) {
	text := h.Get(name)
	at, err := http.ParseTime(text)
	if err != nil {
		if strings.Trim(text, "0123456789.") != "" { // strconv reads also signs, exponents and infinity
			return 0, false
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, false
		}
		wait := time.Duration(min(seconds, 1<<32) * float64(time.Second))
		if seconds < leastUnixTime {
			return wait, true
		}
		at = time.Unix(0, int64(wait))
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(at.Sub(now), 0), true
}

// copyOf returns a request to send again.
func copyOf(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.GetBody == nil {
		return again, nil
	}
	var err error
	again.Body, err = r.GetBody()
	return again, err
}
