package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// Each API key may send two requests a day.
func ExampleNewKeyed() {
	perKey, err := ratelimit.NewKeyed(ratelimit.PerDay(2))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		fmt.Println(perKey.Allow(context.Background(), "ann's key"))
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// Each user has 1,000 tokens a day. The number of tokens of a request is its cost.
func ExampleKeyed_AllowN() {
	tokens, err := ratelimit.NewKeyed(ratelimit.PerDay(1000))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tokens.AllowN(context.Background(), "ann", 700))
	fmt.Println(tokens.AllowN(context.Background(), "ann", 700))
	// Output:
	// true <nil>
	// false <nil>
}

// Workers call a vendor ten times in 100 ms. They wait in line.
func ExampleKeyed_Wait() {
	vendors, err := ratelimit.NewKeyed(ratelimit.Bucket(10, 100*time.Millisecond, 1))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		if err := vendors.Wait(context.Background(), "acme"); err != nil {
			log.Fatal(err)
		}
		fmt.Println("call", i)
	}
	// Output:
	// call 0
	// call 1
	// call 2
}

// One customer has paid for more, and another one for less: the number comes from your database.
func ExampleKeyed_SetLimit() {
	perCustomer, err := ratelimit.NewKeyed(ratelimit.PerDay(100))
	if err != nil {
		log.Fatal(err)
	}
	if err := perCustomer.SetLimit("ann", ratelimit.PerDay(1000)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(perCustomer.AllowN(context.Background(), "ann", 500))
	fmt.Println(perCustomer.AllowWith(context.Background(), "bob", 50, ratelimit.PerDay(10)))
	// Output:
	// true <nil>
	// false <nil>
}

// A customer has complained, and you give back the day's requests.
func ExampleKeyed_Reset() {
	perCustomer, err := ratelimit.NewKeyed(ratelimit.PerDay(1))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(perCustomer.Allow(context.Background(), "ann"))
		if err := perCustomer.Reset(context.Background(), "ann"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
}

// A job that failed costs nothing.
func ExampleKeyed_Refund() {
	jobs, err := ratelimit.NewKeyed(ratelimit.PerDay(1))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(jobs.Allow(context.Background(), "ann"))
		if err := jobs.Refund(context.Background(), "ann", 1); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
}

// A question to a language model may use 500 tokens. It uses 120, and the others are free again.
func ExampleKeyed_ReserveN() {
	tokens, err := ratelimit.NewKeyed(ratelimit.PerDay(1000))
	if err != nil {
		log.Fatal(err)
	}
	held, err := tokens.ReserveN(context.Background(), "ann", 500, ratelimit.ReserveOptions{})
	if err != nil || !held.Decision.Allowed {
		log.Fatal("no tokens are left: ", err)
	}
	if err := held.Commit(context.Background(), ratelimit.Amount{Hits: 120}); err != nil {
		log.Fatal(err)
	}
	left, err := tokens.Left(context.Background(), "ann")
	fmt.Println(left.Remaining, err)
	// Output: 880 <nil>
}

// Each customer has at most one export at the same time.
func ExampleKeyed_Acquire() {
	exports, err := ratelimit.NewKeyed(ratelimit.AtOnce(1, time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		release, err := exports.Acquire(context.Background(), "ann")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("exporting")
		release()
	}
	// Output:
	// exporting
	// exporting
}
