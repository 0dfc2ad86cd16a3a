package redisconn

import (
	"context"
	"errors"
	"net"

	goredis "github.com/redis/go-redis/v9"
)

// ErrBreakerOpen is the error of a call while the breaker of its node is open.
var ErrBreakerOpen = errors.New("the breaker is open: the node did not answer lately")

// errSilent is the error of a call that waited while its node sent nothing.
var errSilent = errors.New("the node sends nothing while calls wait for it")

// IsTimeout reports whether a call failed because its time was up: its own, or that of the wait for a connection.
func IsTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, goredis.ErrPoolTimeout) {
		return true
	}
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
