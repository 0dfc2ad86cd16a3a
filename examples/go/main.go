// Command go is a small HTTP service that asks ratelimitd before it does its work. It lets a request pass if there is
// no answer in time, and holds a request that a leaky bucket delays.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
)

func main() {
	listen := flag.String("listen", "localhost:9000", "where this service listens")
	target := flag.String("ratelimitd", "localhost:8081",
		"where ratelimitd is; dns:///name:8081 balances over all its addresses")
	flag.Parse()

	// One client serves the whole process. The timeout bounds the time that a decision adds to a request.
	limiter, err := client.New(*target, client.Options{Timeout: 25 * time.Millisecond, OnFailure: limits.OnFailureAllow})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server := &http.Server{Addr: *listen, Handler: limited(limiter, http.HandlerFunc(hello)),
		ReadHeaderTimeout: time.Second}
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		slog.Error("serve", "error", err)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

// limited passes a request to next if the limit of its customer has room.
func limited(limiter *client.Client, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := limiter.Decide(r.Context(), limits.NewRequest("api", "customer", r.Header.Get("X-Customer")))
		switch {
		case err != nil: // the request to ratelimitd is wrong; a limit protects the service and must not take it down
			slog.Error("not limited", "error", err)
		case answer.Err != nil:
			slog.Warn("not limited", "error", answer.Err)
		case !answer.Allowed:
			for _, h := range answer.Headers {
				w.Header().Add(h.Name, h.Value)
			}
			if answer.RetryAfter != limits.Never {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(answer.RetryAfter.Seconds()))))
			}
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		if limits.Sleep(r.Context(), answer.Delay) != nil {
			return // the client has gone
		}
		next.ServeHTTP(w, r)
	})
}
