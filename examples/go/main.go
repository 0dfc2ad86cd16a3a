// Command go is a small HTTP service that calls ratelimitd before it does its work. It has one connection for the whole
// process and a deadline on every call, and lets a request pass if there is no answer in time. It holds a request that a leaky
// bucket delays.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// timeout bounds the time that a decision adds to a request. If Redis has not answered shortly before its end, on_error
// answers.
const timeout = 25 * time.Millisecond

func main() {
	listen := flag.String("listen", "localhost:9000", "where this service listens")
	target := flag.String("ratelimitd", "localhost:8081", "where ratelimitd is; dns:///name:8081 balances over all its addresses")
	flag.Parse()

	// One connection carries all calls. round_robin uses every address behind the name in turn.
	conn, err := grpc.NewClient(*target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer conn.Close()
	limits := rls.NewRateLimitServiceClient(conn)
	server := &http.Server{Addr: *listen, Handler: limited(limits, http.HandlerFunc(hello)), ReadHeaderTimeout: time.Second}
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		slog.Error("serve", "error", err)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

// limited passes a request to next if ratelimitd allows it, or does not answer in time.
func limited(limits rls.RateLimitServiceClient, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		var head metadata.MD
		answer, err := limits.ShouldRateLimit(ctx, &rls.RateLimitRequest{
			Domain: "api",
			Descriptors: []*ratelimitv3.RateLimitDescriptor{{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "customer", Value: r.Header.Get("X-Customer")}},
			}},
		}, grpc.Header(&head))
		switch {
		case err != nil:
			// A limit protects the service and must not take it down. The failure is logged, so that it is noticed.
			slog.Warn("not limited", "error", err)
		case answer.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT:
			for _, h := range answer.GetResponseHeadersToAdd() {
				w.Header().Add(h.GetKey(), h.GetValue())
			}
			if wait := answer.GetStatuses()[0].GetDurationUntilReset(); wait != nil && w.Header().Get("Retry-After") == "" {
				w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64(wait.AsDuration().Seconds())), 10))
			}
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		if !wait(r.Context(), head.Get("x-ratelimit-delay-ms")) {
			return // the client has gone
		}
		next.ServeHTTP(w, r)
	})
}

// wait waits for the delay of the answer, if it has one. It returns false if the client goes before.
func wait(ctx context.Context, delay []string) bool {
	if len(delay) == 0 {
		return true
	}
	ms, err := strconv.ParseInt(delay[0], 10, 64)
	if err != nil {
		return true
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}
