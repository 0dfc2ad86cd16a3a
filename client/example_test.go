package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
)

// patience is the Timeout of the examples, so that they succeed on a busy machine. Programs leave it out: 20 ms is
// enough.
const patience = 10 * time.Second

// open returns a client of the examples.
func open() *client.Client {
	c, err := client.New(target, client.Options{Timeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

func ExampleNew() {
	c, err := client.New(target, client.Options{ // such as "dns:///ratelimitd:8081"
		Timeout:   patience,
		OnFailure: limits.OnFailureAllow, // the default
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(c.Allow(context.Background(), "shop", "customer", "new"))
	// Output: true <nil>
}

func ExampleNewWithConn() {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	c := client.NewWithConn(conn, client.Options{Timeout: patience})
	defer c.Close()
	fmt.Println(c.Allow(context.Background(), "shop", "customer", "on"))
	// Output: true <nil>
}

func ExampleClient_Allow() {
	c := open()
	defer c.Close()
	for range 3 { // the limit is 2
		ok, err := c.Allow(context.Background(), "shop", "customer", "ann")
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleClient_Decide() {
	c := open()
	defer c.Close()
	r := limits.NewRequest("shop", "customer", "bob")
	r.Amount.Hits = 2
	for range 3 {
		d, err := c.Decide(context.Background(), r)
		fmt.Println(d.Allowed, d.Source, d.Statuses[0].Rule, d.Statuses[0].Remaining, d.RetryAfter > 0, err)
	}
	// Output:
	// true counted shop.customer 0 false <nil>
	// false counted shop.customer 0 true <nil>
	// false denial_cache shop.customer 0 true <nil>
}

func ExampleClient_Decide_failure() {
	c, err := client.New("localhost:1", client.Options{OnFailure: limits.OnFailureDeny}) // nothing listens there
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	d, err := c.Decide(context.Background(), limits.NewRequest("shop", "customer", "bob"))
	fmt.Println(d.Allowed, d.Source, d.Err != nil, err)
	// Output: false fail_closed true <nil>
}

func ExampleClient_Wait() {
	c := open()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 3 { // one every 10 ms
		if _, err := c.Wait(ctx, limits.NewRequest("shop", "mail", "ann")); err != nil {
			log.Fatal(err)
		}
		fmt.Println("mail", i)
	}
	// Output:
	// mail 0
	// mail 1
	// mail 2
}

func ExampleClient_Reserve() {
	c := open()
	defer c.Close()
	r := limits.NewRequest("shop", "model", "ann")
	r.Amount.Hits = 500 // the most tokens that the answer may have
	held, err := c.Reserve(context.Background(), r, limits.ReserveOptions{})
	if err != nil || !held.Decision.Allowed {
		log.Fatal("no tokens are left: ", err)
	}
	// The request runs, and uses 120 tokens.
	if err := held.Commit(context.Background(), limits.Amount{Hits: 120}); err != nil {
		log.Fatal(err)
	}
	r.Amount = limits.Amount{Peek: true}
	d, err := c.Decide(context.Background(), r)
	fmt.Println(held.Reserved, d.Statuses[0].Remaining, err)
	// Output: 500 880 <nil>
}

func ExampleClient_Stats() {
	c := open()
	defer c.Close()
	for range 3 {
		if _, err := c.Allow(context.Background(), "shop", "customer", "eve"); err != nil {
			log.Fatal(err)
		}
	}
	stats := c.Stats()
	fmt.Println(stats.Decisions[limits.Counted], stats.Decisions[limits.FailOpen], stats.Errors, stats.RPCs)
	// Output: 3 0 0 3
}
