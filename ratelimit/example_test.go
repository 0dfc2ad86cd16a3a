package ratelimit_test

import (
	"context"
	"embed"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// Each customer may send two requests a day.
func ExampleNew() {
	limiter, err := ratelimit.New("api", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerDay(2)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()
	for range 3 {
		fmt.Println(limiter.Allow(context.Background(), "api", "customer", "ann"))
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// An HTTP API with two plans. A customer who changes the plan keeps the used hits.
func ExampleNew_plans() {
	each := func(requests uint64) []ratelimit.Rule {
		return []ratelimit.Rule{{Key: "customer", Limit: ratelimit.PerDay(requests)}}
	}
	limiter, err := ratelimit.New("api",
		ratelimit.Rule{Key: "plan", Value: "free", Condition: true, Rules: each(2)},
		ratelimit.Rule{Key: "plan", Value: "pro", Condition: true, Rules: each(1000)},
	)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()

	api := httplimit.New(limiter, httplimit.Options{
		Domain:      "api",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Plan", "plan"), httplimit.Header("X-Customer", "customer")}},
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") }))
	for range 3 {
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		request.Header.Set("X-Plan", "free")
		request.Header.Set("X-Customer", "ann")
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, request)
		fmt.Println(answer.Code)
	}
	// Output:
	// 200
	// 200
	// 429
}

// A worker calls a vendor that accepts one call each 10 ms. All workers with the same Redis share the limit.
func ExampleLimiter_Wait() {
	limiter, err := ratelimit.Open(context.Background(), ratelimit.Options{
		Domains: []ratelimit.Domain{{Name: "vendors", Rules: []ratelimit.Rule{
			{Key: "vendor", Value: "acme", Limit: ratelimit.Limit{Requests: 100, Window: time.Second, Algorithm: ratelimit.TokenBucket, Burst: 1}},
		}}},
		// Store: redisstore.New(redisstore.Options{URL: "redis:6379"}),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 3 {
		if _, err := limiter.Wait(ctx, limits.NewRequest("vendors", "vendor", "acme")); err != nil {
			log.Fatal(err)
		}
		fmt.Println("call", i)
	}
	// Output:
	// call 0
	// call 1
	// call 2
}

//go:embed testdata/rules
var embedded embed.FS

// Rule files are part of the program.
func ExampleOpen() {
	limiter, err := ratelimit.Open(context.Background(), ratelimit.Options{Files: embedded})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()
	fmt.Println(limiter.Allow(context.Background(), "shop", "customer", "ann"))
	// Output: true <nil>
}

func ExampleLimiter_Decide() {
	limiter, err := ratelimit.New("shop", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerDay(2)})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()
	request := limits.NewRequest("shop", "customer", "ann")
	request.Amount.Hits = 2
	d, err := limiter.Decide(context.Background(), request)
	fmt.Println(d.Allowed, d.Statuses[0].Rule, d.Statuses[0].Remaining, err)
	d, err = limiter.Decide(context.Background(), request)
	fmt.Println(d.Allowed, d.RetryAfter > 0, err)
	// Output:
	// true shop.customer 0 <nil>
	// false true <nil>
}

// A request to a language model: its cost is known when it is over.
func ExampleLimiter_Reserve() {
	limiter, err := ratelimit.New("llm", ratelimit.Rule{Key: "team", Limit: ratelimit.PerDay(1000), Reservations: true})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = limiter.Close() }()
	request := limits.NewRequest("llm", "team", "search")
	request.Amount.Hits = 500 // the most tokens that the answer may have
	held, err := limiter.Reserve(context.Background(), request, ratelimit.ReserveOptions{})
	if err != nil || !held.Decision.Allowed {
		log.Fatal("no tokens are left: ", err)
	}
	// The request runs, and uses 120 tokens.
	if err := held.Commit(context.Background(), ratelimit.Amount{Hits: 120}); err != nil {
		log.Fatal(err)
	}
	request.Amount = ratelimit.Amount{Peek: true}
	d, err := limiter.Decide(context.Background(), request)
	fmt.Println(d.Statuses[0].Remaining, err)
	// Output: 880 <nil>
}
