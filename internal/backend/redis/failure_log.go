package redis

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// failureLog logs calls that Redis did not answer, in at most one line per failureLogEvery. While the breaker stays
// closed, nothing else logs them; when it opens, it logs that itself.
type failureLog struct {
	log      *slog.Logger
	settings string // Options.Settings

	mu    sync.Mutex
	count int
	err   error // the latest
	next  time.Time
	timer *time.Timer // nil if no line is due
}

const (
	failureLogDelay = time.Second // failures within it share a line
	failureLogEvery = 10 * time.Second
)

// add counts a failed call.
func (l *failureLog) add(err error) {
	if errors.Is(err, redisconn.ErrBreakerOpen) || errors.Is(err, context.Canceled) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count, l.err = l.count+1, err
	if l.timer == nil {
		l.timer = time.AfterFunc(max(failureLogDelay, time.Until(l.next)), l.write)
	}
}

func (l *failureLog) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 {
		about := []any{"calls", l.count, "error", l.err}
		if advice := redisconn.Advice(l.err, l.settings); advice != "" {
			about = append(about, "advice", advice)
		}
		l.log.Warn("calls failed because Redis did not answer them: on_error decided", about...)
	}
	l.count, l.err, l.timer, l.next = 0, nil, nil, time.Now().Add(failureLogEvery)
}

// close writes a line that is due.
func (l *failureLog) close() {
	l.mu.Lock()
	due := l.timer != nil && l.timer.Stop()
	l.mu.Unlock()
	if due {
		l.write()
	}
}
