package redis

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/redisconn"
)

// losses writes a line about calls that Redis did not answer, at most one in lossesEvery. Without it nothing would say so while the breaker
// stays closed, which has a line of its own.
type losses struct {
	log *slog.Logger

	mu    sync.Mutex
	count int
	err   error // the latest
	next  time.Time
	timer *time.Timer // not nil: a line will be written
}

const (
	lossesAfter = time.Second // what fails together is one line
	lossesEvery = 10 * time.Second
)

func (l *losses) add(err error) {
	if errors.Is(err, redisconn.ErrBreakerOpen) || errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count, l.err = l.count+1, err
	if l.timer == nil {
		l.timer = time.AfterFunc(max(lossesAfter, time.Until(l.next)), l.write)
	}
}

func (l *losses) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 {
		l.log.Warn("calls failed because Redis did not answer them: on_error decided", "calls", l.count, "error", l.err)
	}
	l.count, l.err, l.timer, l.next = 0, nil, nil, time.Now().Add(lossesEvery)
}

// close writes what is left to say.
func (l *losses) close() {
	l.mu.Lock()
	waits := l.timer != nil && l.timer.Stop()
	l.mu.Unlock()
	if waits {
		l.write()
	}
}
