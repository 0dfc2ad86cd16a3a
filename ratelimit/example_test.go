package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// example opens a limiter with the rules of the examples.
func example() (l *ratelimit.Limiter, end func()) {
	dir, err := os.MkdirTemp("", "rules")
	if err != nil {
		log.Fatal(err)
	}
	err = os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(`
domain: shop
descriptors:
  - key: customer
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: mail
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 1}
  - key: model
    rate_limit: {unit: year, requests_per_unit: 1000}
    reservations: {ttl: 1m}
`), 0o600)
	if err != nil {
		log.Fatal(err)
	}
	l, err = ratelimit.Open(ratelimit.Options{Rules: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return l, func() { _, _ = l.Close(), os.RemoveAll(dir) }
}

func ExampleOpen() {
	dir, _ := os.MkdirTemp("", "rules")
	defer func() { _ = os.RemoveAll(dir) }()
	rules := []byte("domain: shop\ndescriptors:\n  - key: customer\n    rate_limit: {unit: year, requests_per_unit: 2}\n")
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), rules, 0o600); err != nil {
		log.Fatal(err)
	}
	l, err := ratelimit.Open(ratelimit.Options{
		Rules:  dir,
		Logger: slog.New(slog.DiscardHandler),
		// Redis: &ratelimit.Redis{URL: "redis:6379"}, // to share counters with other processes
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	fmt.Println(l.Allow(context.Background(), "shop", "customer", "ann"))
	// Output: true <nil>
}

func ExampleLimiter_Allow() {
	l, end := example()
	defer end()
	for range 3 {
		ok, err := l.Allow(context.Background(), "shop", "customer", "ann")
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleLimiter_Decide() {
	l, end := example()
	defer end()
	r := limits.New("shop", "customer", "ann")
	r.Amount.Hits = 2
	d, err := l.Decide(context.Background(), r)
	fmt.Println(d.Allowed, d.Statuses[0].Rule, d.Statuses[0].Remaining, err)
	d, err = l.Decide(context.Background(), r)
	fmt.Println(d.Allowed, d.RetryAfter > 0, err)
	// Output:
	// true shop.customer 0 <nil>
	// false true <nil>
}

func ExampleLimiter_Wait() {
	l, end := example()
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 3 { // one every 10 ms
		if _, err := l.Wait(ctx, limits.New("shop", "mail", "ann")); err != nil {
			log.Fatal(err)
		}
		fmt.Println("mail", i)
	}
	// Output:
	// mail 0
	// mail 1
	// mail 2
}

func ExampleLimiter_Reserve() {
	l, end := example()
	defer end()
	r := limits.New("shop", "model", "ann")
	r.Amount.Hits = 500 // the most tokens that the answer may have
	held, err := l.Reserve(context.Background(), r, ratelimit.ReserveOptions{})
	if err != nil || !held.Decision.Allowed {
		log.Fatal("no tokens are left: ", err)
	}
	// The request runs, and uses 120 tokens.
	if err := held.Commit(context.Background(), ratelimit.Amount{Hits: 120}); err != nil {
		log.Fatal(err)
	}
	r.Amount = ratelimit.Amount{Peek: true}
	d, err := l.Decide(context.Background(), r)
	fmt.Println(d.Statuses[0].Remaining, err)
	// Output: 880 <nil>
}
