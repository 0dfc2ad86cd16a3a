// Command http-queue is an HTTP service that loses no denied request. A message within the sender's limit is delivered
// immediately. Any other is kept in a Redis stream and answered with 202; a consumer delivers it as soon as the limit
// allows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

func main() {
	listen := flag.String("listen", "localhost:9000", "where this service listens")
	rules := flag.String("rules", "rules", "directory of rule files")
	address := flag.String("redis", "localhost:6379", "Redis for the queue and the counters")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *rules, *address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, rules, address string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	limiter, err := ratelimit.Open(context.Background(),
		ratelimit.Options{Dir: rulefiles.Dir(rules), Store: redisstore.New(redisstore.Options{URL: address})})
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close() }()
	q := &queue{redis: redis.NewClient(&redis.Options{Addr: address}), limiter: limiter,
		deliver: func(m message) { slog.Info("delivered", "sender", m.sender, "text", m.text) }}
	defer func() { _ = q.redis.Close() }()
	consumed := make(chan error, 1)
	go func() {
		consumed <- q.consume(ctx)
		stop() // without a consumer nothing may be kept
	}()
	server := &http.Server{Addr: listen, Handler: q.handler(), ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Shutdown(context.WithoutCancel(ctx)) })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-consumed
}

type message struct{ sender, text string }

// The stream, and the group of consumers that share it.
const stream, group = "mail", "delivery"

// queue keeps the messages that were denied.
type queue struct {
	redis   *redis.Client
	limiter *ratelimit.Limiter
	deliver func(message)
}

// handler takes messages: the body of a request, from the sender in its header.
func (q *queue) handler() http.Handler {
	limit := httplimit.New(q.limiter, httplimit.Options{
		Domain:      "mail",
		Descriptors: []httplimit.Descriptor{{httplimit.Header("X-Sender", "sender").Or("none")}},
		Denied:      q.keep,
	})
	return limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m, ok := read(w, r); ok {
			q.deliver(m)
		}
	}))
}

func read(w http.ResponseWriter, r *http.Request) (message, bool) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil {
		http.Error(w, "a message has at most 64 KiB", http.StatusRequestEntityTooLarge)
		return message{}, false
	}
	sender := r.Header.Get("X-Sender")
	switch {
	case sender == "":
		sender = "none"
	case len(sender) > 256: // the middleware counts a hash of it, and the consumer would count it as it is
		http.Error(w, "the name of a sender has at most 256 bytes", http.StatusBadRequest)
		return message{}, false
	}
	return message{sender, string(text)}, true
}

// mostKept bounds the queue, like everything that clients fill: 1,000 messages of at most 64 KiB.
const mostKept = 1000

// keep answers a denied request.
func (q *queue) keep(w http.ResponseWriter, r *http.Request, d limits.Decision) {
	if d.Source == limits.FailClosed { // there was no decision: the client may try again
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	m, ok := read(w, r)
	if !ok {
		return
	}
	waiting, err := q.redis.XLen(r.Context(), stream).Result()
	if err == nil && waiting >= mostKept {
		http.Error(w, "too many messages wait", http.StatusTooManyRequests)
		return
	}
	if err == nil {
		err = q.redis.XAdd(r.Context(), &redis.XAddArgs{Stream: stream,
			Values: []any{"sender", m.sender, "text", m.text}}).Err()
	}
	if err != nil {
		slog.Error("keep a message", "error", err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	w.Header().Del("Retry-After") // nobody has to repeat it
	w.WriteHeader(http.StatusAccepted)
}

// consume delivers kept messages until ctx ends, one after the other: a sender who waits for its limit holds up the
// senders behind it, so a service with many senders needs a stream for each, or several consumers. A message that was
// read and not delivered, because the process ended, is read again.
func (q *queue) consume(ctx context.Context) error {
	if err := q.redis.XGroupCreateMkStream(ctx, stream, group, "0").Err(); err != nil &&
		!redis.HasErrorPrefix(err, "BUSYGROUP") {
		return fmt.Errorf("create the group of consumers: %w", err)
	}
	for from := "0"; ctx.Err() == nil; { // first messages that were read before and not delivered, then new ones
		read, err := q.redis.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "one",
			Streams: []string{stream, from}, Count: 1, Block: time.Second}).Result()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // ctx has ended
		case err != nil:
			return fmt.Errorf("read the queue: %w", err)
		case len(read[0].Messages) == 0:
			from = ">"
			continue
		}
		kept := read[0].Messages[0]
		sender, _ := kept.Values["sender"].(string)
		text, _ := kept.Values["text"].(string)
		if _, err := q.limiter.Wait(ctx, limits.NewRequest("mail", "sender", sender)); err != nil {
			return nil //nolint:nilerr // ctx has ended, and the message stays in the queue
		}
		q.deliver(message{sender, text})
		if err = q.redis.XAck(ctx, stream, group, kept.ID).Err(); err == nil {
			err = q.redis.XDel(ctx, stream, kept.ID).Err()
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("remove a delivered message: %w", err)
		}
	}
	return nil
}
