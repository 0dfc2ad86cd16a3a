package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Rules become a tree, Swap puts the tree into force, and Decide answers requests.
func ExampleLimiter_Decide() {
	rules := `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
`
	tree, errs := config.Compile([]config.File{{Name: "shop.yaml", Data: []byte(rules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		fmt.Println(errs)
		return
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})

	request := &limiter.Request{Domain: "shop", Descriptors: []limiter.Descriptor{
		{Entries: []descriptor.Entry{{Key: "user", Value: "ann"}}},
	}}
	now := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	var d limiter.Decision // Decide reuses its slices
	for range 3 {
		if err := l.Decide(context.Background(), now, request, &d); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Code, d.Statuses[0].Rule.Path, d.Statuses[0].Remaining, d.Statuses[0].RetryAfter)
	}
	// Output:
	// OK shop.user 1 0s
	// OK shop.user 0 0s
	// OVER_LIMIT shop.user 0 30s
}
