package memory_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
)

func TestSuite(t *testing.T) {
	backendtest.Run(t, func(testing.TB) backendtest.Store { return memory.New(memory.Options{}) })
}
