package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// RedisHealth defines how Redis affects the health of this replica.
type RedisHealth struct {
	Serve  bool // health is green before Redis has answered
	Active bool // health is red whenever Redis does not answer

	Initial, Max time.Duration // the first and the longest wait between pings until Redis answers
	MaxElapsed   time.Duration // time without an answer of Redis after which Run fails; 0 for no bound
}

func (o *RedisHealth) backOff() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = min(o.Initial, o.Max), o.Max
	return b
}

const (
	pingEvery = time.Second // interval of pings if health follows Redis, or after Redis has rejected a call
	// pingTimeout bounds each ping. Making a connection may take longer: it continues in the background, and a later ping
	// uses it.
	pingTimeout = time.Second
)

// noAnswer returns the answer of /healthcheck while a Redis keeps health red.
func noAnswer(c *assembly.Connected) string {
	return "no answer from the Redis of " + c.Settings + "_URL"
}

// pingRedis finds out before the service listens whether each Redis answers. Without Serve, health is red until all of
// them have answered: a rollout should stop if a new replica cannot reach its Redis, because of a wrong address for
// example. Until then on_error decides the calls.
func (s *Service) pingRedis(ctx context.Context) {
	ask := !s.o.Redis.Serve || s.o.Redis.Active
	answered := make([]bool, len(s.counters.Redis))
	pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range s.counters.Redis {
		if ask {
			wg.Go(func() {
				answered[i] = c.Ping(pingCtx) == nil
				s.Server.SetMissing(noAnswer(c), !answered[i])
			})
		}
		s.o.Tasks.Add(func(ctx context.Context) error { return s.awaitRedis(ctx, c, answered[i]) })
	}
	wg.Wait()
}

// awaitRedis pings a Redis until it answers, and ends the service if that takes longer than allowed. Then health
// follows the Redis, depending on the options.
func (s *Service) awaitRedis(ctx context.Context, c *assembly.Connected, answered bool) error {
	o := &s.o.Redis
	if !answered {
		waited := false
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
			defer cancel()
			return struct{}{}, c.Ping(pingCtx)
		}, backoff.WithBackOff(o.backOff()), backoff.WithMaxElapsedTime(o.MaxElapsed), backoff.WithNotify(func(err error,
			next time.Duration) {
			waited = true
			log := s.o.Log.With("settings", c.Settings, "error", err, "asked_again_in", next.Round(time.Millisecond))
			if advice := redisconn.Advice(err, c.Settings); advice != "" {
				log.Error("Redis cannot be used with these settings: on_error decides", "advice", advice)
				return
			}
			log.Warn("Redis does not answer yet: on_error decides until it does")
		}))
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the service stops
		case err != nil:
			return fmt.Errorf("%s_URL: no answer within REDIS_STARTUP_MAX_ELAPSED_TIME=%s: %w", c.Settings, o.MaxElapsed, err)
		case waited:
			s.o.Log.Info("Redis answers", "settings", c.Settings)
		}
		s.Server.SetMissing(noAnswer(c), false)
	}
	s.followRedis(ctx, c)
	return nil
}

// followRedis keeps health red while a Redis rejects the calls of this user and, depending on the options, while it
// does not answer. It ends with ctx.
func (s *Service) followRedis(ctx context.Context, c *assembly.Connected) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	alive := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.o.Redis.Active && alive && !c.Rejected() {
			continue
		}
		pingCtx, cancel := context.WithTimeout(ctx, pingTimeout)
		err := c.Ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if (err == nil) == alive || !s.o.Redis.Active && err != nil && !redisconn.Rejects(err) {
			continue
		}
		alive = err == nil
		s.Server.SetMissing(noAnswer(c), !alive)
		if alive {
			s.o.Log.Info("Redis can be used again", "settings", c.Settings)
		} else {
			s.o.Log.Warn("Redis cannot be used: health is red", "settings", c.Settings, "advice",
				redisconn.Advice(err, c.Settings), "error", err)
		}
	}
}
