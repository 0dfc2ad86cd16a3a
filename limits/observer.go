package limits

import (
	"context"
	"time"
)

// Observer sees decisions, to count or trace them.
type Observer interface {
	// Decided is called once for each decision and each reservation, by the goroutine that waits for it, before Decide or
	// Reserve returns. The request and the decision are valid until Decided returns. err is the error of Decide or
	// Reserve; then the decision is empty.
	Decided(ctx context.Context, r *Request, d *Decision, err error, took time.Duration)
}
