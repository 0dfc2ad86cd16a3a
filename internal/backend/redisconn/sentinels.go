package redisconn

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	sentinelPollEvery = time.Second // while there are calls
	// sentinelPollTimeout has room for one sentinel that does not answer before another is asked.
	sentinelPollTimeout = 3 * time.Second
)

// pollSentinels returns a function that asks sentinels in the background which server is primary, if it is time.
// Sentinels publish a change, but the client subscribes to only one of them, and that one may hang or be gone. After a
// planned failover the former primary accepts writes for some ten seconds more: a client that missed the news would
// count there in vain. dial asks sentinels, closes the connections to a former primary, and dials.
func pollSentinels(dial goredis.DialHook) func() {
	return atMostEvery(sentinelPollEvery, func() {
		go func() {
			ctx, cancel := context.WithTimeout(withoutDialing(context.Background()), sentinelPollTimeout)
			defer cancel()
			_, _ = dial(ctx, "tcp", "") // it never connects
		}()
	})
}

var errNoDial = errors.New("the primary was asked for without connecting to it")

type noDialKey struct{}

// withoutDialing marks a dial that ends before it connects.
func withoutDialing(ctx context.Context) context.Context {
	return context.WithValue(ctx, noDialKey{}, true)
}

func isWithoutDialing(ctx context.Context) bool { return ctx.Value(noDialKey{}) != nil }
