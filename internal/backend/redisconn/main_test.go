package redisconn_test

import (
	"log/slog"
	"os"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

func TestMain(m *testing.M) {
	redisconn.LogTo(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}
