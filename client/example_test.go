package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Nobody listens where these examples ask, so they show what the client answers then. Against a service that runs, they print what
// its rules allow.
const nobody = "127.0.0.1:1"

func ExampleNew() {
	c, err := client.New(nobody, client.Options{ // "dns:///ratelimitd:8081"
		Timeout:   20 * time.Millisecond,
		OnFailure: client.FailOpen,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ok, err := c.Allow(context.Background(), "shop", "customer", "ann")
	fmt.Println(ok, err)
	// Output: true <nil>
}

func ExampleClient_Decide() {
	c, err := client.New(nobody, client.Options{OnFailure: client.FailClosed})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	d, err := c.Decide(context.Background(), limits.New("shop", "customer", "ann", "path", "/search"))
	fmt.Println(d.Allowed, d.Source, d.Err != nil, err)
	fmt.Println(c.Stats().Decisions[limits.FailClosed])
	// Output:
	// false fail_closed true <nil>
	// 1
}

func ExampleClient_Wait() {
	c, err := client.New(nobody, client.Options{OnFailure: client.FailOpen})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch d, err := c.Wait(ctx, limits.New("shop", "mail", "ann")); {
	case errors.Is(err, limits.ErrTooLong):
		fmt.Println("try again after", d.RetryAfter)
	case err == nil:
		fmt.Println("send the mail")
	}
	// Output: send the mail
}

func ExampleClient_Reserve() {
	c, err := client.New(nobody, client.Options{OnFailure: client.FailOpen})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	r := limits.New("shop", "model", "ann")
	r.Amount.Hits = 500 // the most tokens that the answer may have
	held, err := c.Reserve(context.Background(), r, limits.ReserveOptions{TTL: time.Minute})
	if err != nil || !held.Decision.Allowed {
		log.Fatal("no tokens are left: ", err)
	}
	// The request runs, and uses 120 tokens.
	fmt.Println(held.Commit(context.Background(), limits.Amount{Hits: 120}))
	// Output: <nil>
}
