package destination

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
)

// webhook sends events as HTTP requests in structured mode. The system's authorities are trusted, or those of
// SSL_CERT_FILE and SSL_CERT_DIR.
type webhook struct {
	url     string
	where   string // its scheme and host
	headers string // path of the file; empty without headers
	client  http.Client
}

func newWebhook(o *Options) (*webhook, error) {
	u, err := url.Parse(o.To)
	if err != nil || u.Host == "" {
		return nil, errors.New("the webhook's URL is invalid: it must have the form https://host/path")
	}
	w := &webhook{url: u.String(), where: u.Scheme + "://" + u.Host, headers: o.HeadersFile}
	w.client = http.Client{
		// the headers are only for this host
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{MaxIdleConns: 1, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10},
	}
	return w, nil
}

// Name implements events.Destination.
func (w *webhook) Name() string { return w.where }

// aboutEvents are the status codes by which a receiver rejects the events themselves: it would not accept them later
// either.
var aboutEvents = []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
	http.StatusUnprocessableEntity}

// maxAnswer is how much of an answer is read, so that its connection can be used again.
const maxAnswer = 64 << 10

// Send implements events.Destination.
func (w *webhook) Send(ctx context.Context, event []byte) error {
	headers, err := readHeaders(w.headers)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(event))
	if err != nil {
		return withoutURL(err)
	}
	for name, values := range headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	req.Header.Set("User-Agent", "ratelimitd")
	// sends no header; net/http may then repeat the request if an idle connection was closed
	req.Header["Idempotency-Key"] = []string{}
	answer, err := w.client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	_ = answer.Body.Close()
	switch code := answer.StatusCode; {
	case code/100 == 2:
		return nil
	case slices.Contains(aboutEvents, code):
		return &events.RejectedError{Err: fmt.Errorf("the webhook answered %s", answer.Status)}
	default:
		return &events.LaterError{
			Err:   fmt.Errorf("the webhook answered %s", answer.Status),
			After: retryAfter(answer.Header.Get("Retry-After"), time.Now()),
		}
	}
}

// withoutURL removes the URL from an error of net/http.
func withoutURL(err error) error {
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err
	}
	return err
}

// retryAfter parses the header's value, which is in seconds or a date. It returns 0 for a missing or invalid value.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
