package redisconn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	sentinelPollEvery = time.Second // while there are calls
	// sentinelPollTimeout has room for one sentinel that does not answer before another is asked.
	sentinelPollTimeout = 3 * time.Second
)

// sentinelPoll asks sentinels now and then which server is primary. Sentinels publish a change, but the client subscribes to only one of
// them, and that one may hang or be gone. After a failover in good order the former primary takes writes for some ten seconds
// more: a client that missed the news would count there in vain. A nil *sentinelPoll does nothing.
type sentinelPoll struct {
	dial goredis.DialHook // asks sentinels, closes the connections to a former primary, and dials
	last atomic.Int64     // when it was called, in nanoseconds
}

// poll asks in the background if it is time.
func (p *sentinelPoll) poll() {
	if p == nil {
		return
	}
	now, before := time.Now().UnixNano(), p.last.Load()
	if now-before < int64(sentinelPollEvery) || !p.last.CompareAndSwap(before, now) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(withoutDialing(context.Background()), sentinelPollTimeout)
		defer cancel()
		_, _ = p.dial(ctx, "tcp", "") // it never connects
	}()
}

var errNoDial = errors.New("the primary was asked for without connecting to it")

type noDialKey struct{}

// withoutDialing marks a dial that ends before it connects.
func withoutDialing(ctx context.Context) context.Context {
	return context.WithValue(ctx, noDialKey{}, true)
}

func isWithoutDialing(ctx context.Context) bool { return ctx.Value(noDialKey{}) != nil }
