// Command http-service is an HTTP service whose requests are limited within its process. The rules are in the directory
// rules; a change of them is active within a second.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

func main() {
	listen := flag.String("listen", "localhost:9000", "where this service listens")
	rules := flag.String("rules", "rules", "directory of rule files")
	redis := flag.String("redis", "", "Redis for counters that several replicas share; empty: count in this replica")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *rules, *redis); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, rules, redis string) error {
	o := ratelimit.Options{Dir: rulefiles.Dir(rules)}
	if redis != "" {
		o.Store = redisstore.New(redisstore.Options{URL: redis})
	}
	limiter, err := ratelimit.Open(context.Background(), o)
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close() }()
	server := &http.Server{Addr: listen, Handler: routes(limiter), ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() { ended <- server.Shutdown(context.WithoutCancel(ctx)) })
	slog.Info("listening", "address", listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended // the requests in flight have their answers, and the limiter may close
}

// proxies are the networks of the proxies in front of this service.
var proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("10.0.0.0/8")}

// customer returns the key of a customer. It is a secret, so only its hash is counted.
func customer(key string) httplimit.Key { return httplimit.Header("X-Api-Key", key).Hashed() }

// routes returns the handler of all pages. Requests are limited, and so are the words that summaries have.
func routes(limiter *ratelimit.Limiter) http.Handler {
	words := httplimit.New(limiter, httplimit.Options{
		Domain:      "search",
		Descriptors: []httplimit.Descriptor{{customer("words").Or("none")}},
		Cost:        func(*http.Request) limits.Amount { return limits.Amount{Hits: mostWords} },
		Actual: func(r *http.Request, _ int, _ int64) limits.Amount {
			return limits.Amount{Hits: *r.Context().Value(written{}).(*uint64)}
		},
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /search", search)
	mux.HandleFunc("GET /pages/{id}", page)
	mux.Handle("GET /summary", counted(words(http.HandlerFunc(summary))))

	limit := httplimit.New(limiter, httplimit.Options{
		Domain: "search",
		Descriptors: []httplimit.Descriptor{
			{customer("customer").Or("none"), httplimit.Pattern("route").Or("none")},
			{httplimit.RemoteAddress("address", proxies...)},
		},
	})
	return limit(mux)
}

func search(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "found", r.FormValue("q")) }

func page(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "page", r.PathValue("id")) }

// mostWords is the size of the longest summary.
const mostWords = 4000

// summary writes the words of a text and counts them.
func summary(w http.ResponseWriter, r *http.Request) {
	all := strings.Fields(r.FormValue("text"))
	all = all[:min(len(all), mostWords)]
	*r.Context().Value(written{}).(*uint64) = uint64(len(all))
	fmt.Fprintln(w, strings.Join(all, " "))
}

// written is the key of the number of words in the context of a request.
type written struct{}

// counted adds a counter of words to the context of a request. The handler sets it, and the middleware reads it.
func counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), written{}, new(uint64))))
	})
}
