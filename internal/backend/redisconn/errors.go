package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// ErrBreakerOpen is the error of a call while the breaker of its node is open.
var ErrBreakerOpen = errors.New("the breaker is open: the node did not answer lately")

// errSilent is the error of a call that waited while its node sent nothing.
var errSilent = errors.New("the node sends nothing while calls wait for it")

// IsTimeout reports whether a call failed because it took too long, or waited too long for a connection.
func IsTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, goredis.ErrPoolTimeout) {
		return true
	}
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// IsTooLarge reports whether a call failed because its answer is larger than a connection accepts. The caller may then
// ask for less in one call.
func IsTooLarge(err error) bool {
	_, ok := errors.AsType[tooLarge](err)
	return ok
}

// ioError replaces the error of a connection that has been in use. It hides the cause: the client library sends a
// command again after some errors, but nobody knows whether Redis has executed it already.
func ioError(err error) error {
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return timeoutError{err.Error()}
	}
	return brokenError{err.Error()}
}

// brokenError is a connection that broke while it was used.
type brokenError struct{ text string }

func (e brokenError) Error() string { return e.text }

// timeoutError is a deadline that passed while a connection was used.
type timeoutError struct{ text string }

func (e timeoutError) Error() string { return e.text }

// Timeout and Temporary make it a net.Error.
func (timeoutError) Timeout() bool { return true }

// Temporary reports that a later call may succeed.
func (timeoutError) Temporary() bool { return true }

// Is makes it a deadline that was exceeded.
func (timeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}

// serverError is an error of Redis without the arguments that it repeats.
type serverError struct{ text string }

func (e serverError) Error() string { return e.text }

// RedisError makes it an error that the client library recognizes.
func (serverError) RedisError() {}

// maxErrorText bounds the length of an error's text, in bytes: a server chooses it.
const maxErrorText = 512

// presentable returns an error without the arguments that Redis repeats. Of a long text it keeps the start. The text of
// an error of Redis is its cause, so a cut one is another error.
func presentable(err error) error {
	text, cut := cutArguments(err.Error())
	if len(text) <= maxErrorText && !cut {
		return err
	}
	if len(text) > maxErrorText {
		text = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:maxErrorText], ""), len(text))
	}
	if _, ok := errors.AsType[goredis.Error](err); ok || cut {
		return serverError{text}
	}
	return shortened{text, err}
}

// shortened is an error of the connection with the start of its text.
type shortened struct {
	text string
	err  error
}

func (e shortened) Error() string { return e.text }

func (e shortened) Unwrap() error { return e.err }

// cutArguments removes the arguments that Redis repeats of a command that it does not know. They may include a
// password, if AUTH or HELLO is the command.
func cutArguments(text string) (rest string, cut bool) {
	rest, _, cut = strings.Cut(text, "with args beginning with")
	return strings.TrimRight(rest, ", "), cut
}
