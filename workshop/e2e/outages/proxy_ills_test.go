package outages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Each fault has its symptom, and Mend removes it.
func TestProxy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := startProxy(t, s)
	c := goredis.NewClient(&goredis.Options{Addr: p.Addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 1})
	t.Cleanup(func() { _ = c.Close() })
	const little, enough = 100 * time.Millisecond, 10 * time.Second
	count := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return c.Incr(ctx, "k").Err()
	}
	counted := func() int64 { n, _ := s.Client(t).Get(t.Context(), "k").Int64(); return n }
	late := func(err error) error {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("want a deadline that passes, got %w", err)
		}
		return nil
	}
	for _, ill := range []struct {
		name   string
		make   func()
		within time.Duration
		want   func(error) error
		does   int64 // calls that reach the server
	}{
		{"none", func() {}, enough, func(err error) error { return err }, 1},
		{"delay", func() { p.Delay(t, enough) }, little, late, 1},
		{"drop", func() { p.Drop(t) }, little, late, 0},
		{"swallow", func() { p.Swallow(t) }, little, late, 1},
		{"cut", func() { p.Cut(t) }, enough, func(err error) error {
			if err == nil || late(err) == nil {
				return fmt.Errorf("want a connection that breaks, got %w", err)
			}
			return nil
		}, 1},
		{"slice", func() { p.Slice(t, 2, time.Millisecond) }, enough, func(err error) error { return err }, 1},
		{"close", func() { p.Close(t) }, enough, func(err error) error {
			if err == nil || late(err) == nil {
				return fmt.Errorf("want to be denied, got %w", err)
			}
			return nil
		}, 0},
	} {
		if err := count(enough); err != nil {
			t.Fatalf("before %s: %v", ill.name, err)
		}
		before := counted()
		ill.make()
		err := count(ill.within)
		if err := ill.want(err); err != nil {
			t.Errorf("%s: %v", ill.name, err)
		}
		if got := counted() - before; got != ill.does {
			t.Errorf("%s: %d calls reached the server, want %d", ill.name, got, ill.does)
		}
		p.Mend(t)
		if ill.name == "close" {
			p.Open(t)
		}
		// A broken connection may still be in the pool.
		for deadline := time.Now().Add(enough); ; {
			if err = count(enough); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after %s: %v", ill.name, err)
			}
		}
	}
}
