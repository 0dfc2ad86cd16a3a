package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// A few calls that Redis does not answer do not open the breaker. They are still logged, in one line, and later ones
// only after ten seconds.
func TestFailureLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := &failureLog{log: slog.New(slog.NewTextHandler(&out, nil))}
		pass := func(d time.Duration) {
			time.Sleep(d) //nolint:forbidigo // virtual time
			synctest.Wait()
		}
		lines := func() int {
			l.mu.Lock() // write holds it
			defer l.mu.Unlock()
			return strings.Count(out.String(), "\n")
		}

		l.add(fmt.Errorf("take: %w", redisconn.ErrBreakerOpen)) // the breaker logs that itself
		l.add(fmt.Errorf("take: %w", context.Canceled))         // the caller has left
		pass(2 * failureLogDelay)
		if lines() != 0 {
			t.Errorf("failures of others are logged: %s", &out)
		}

		l.add(errors.New("i/o timeout"))
		l.add(errors.New("connection reset"))
		pass(2 * failureLogDelay)
		if lines() != 1 || !strings.Contains(out.String(), "calls=2") || !strings.Contains(out.String(), "connection reset") {
			t.Errorf("two failures: %s", &out)
		}

		for range 5 {
			l.add(errors.New("i/o timeout"))
			pass(failureLogDelay)
		}
		if lines() != 1 {
			t.Errorf("a second line within %v: %s", failureLogEvery, &out)
		}
		pass(failureLogEvery)
		if lines() != 2 || !strings.Contains(out.String(), "calls=5") {
			t.Errorf("five later failures: %s", &out)
		}

		l.add(errors.New("i/o timeout"))
		l.close()
		if lines() != 3 {
			t.Errorf("a line that is due at the end is lost: %s", &out)
		}
	})
}
