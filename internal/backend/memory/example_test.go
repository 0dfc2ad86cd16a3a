package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A store decides the takes of a request and reports an outcome for each. Time is an argument.
func ExampleStore() {
	limit := &descriptor.Limit{Requests: 2, Window: descriptor.Window{Unit: descriptor.Minute}}
	if err := limit.Compile(); err != nil {
		fmt.Println(err)
		return
	}
	store := memory.New(memory.Options{})
	now := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	for range 3 {
		r := backend.Request{
			Takes:    []backend.Take{{Key: []byte("user=ann"), Limit: limit, Hits: 1}},
			Outcomes: make([]backend.Outcome, 1),
		}
		if err := backend.Await(context.Background(), store, now, &r); err != nil {
			fmt.Println(err)
			return
		}
		o := r.Outcomes[0]
		fmt.Println(o.Allowed, o.Remaining(limit.Capacity()), o.RetryAfter)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 30s
}
