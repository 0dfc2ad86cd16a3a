package backend_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

// TestArithmetic runs the suite on the pure functions. The stores run it too.
func TestArithmetic(t *testing.T) {
	backendtest.Run(t, func(testing.TB) backend.Store { return backendtest.NewModel() })
}
