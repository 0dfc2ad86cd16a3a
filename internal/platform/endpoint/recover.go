package endpoint

import (
	"net/http"
	"runtime/debug"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

const panicked = "internal error: the server's log has the details"

var errPanicked = status.Error(codes.Internal, panicked)

// Panicked counts and logs the result of recover. It returns the error for the client.
func (s *Shared) Panicked(p any, method string) error {
	if started, ok := p.(*async.PanicError); ok { // recovered on another goroutine
		return s.PanickedAt(started.Value, method, started.Stack)
	}
	return s.PanickedAt(p, method, debug.Stack())
}

// PanickedAt is Panicked for a panic that was recovered earlier, with the stack of that moment.
func (s *Shared) PanickedAt(p any, method string, stack []byte) error {
	s.panics.Inc()
	s.Log.Error("panic while answering", "method", method, "panic", p, "stack", string(stack))
	return errPanicked
}

// Recovering answers with status 500 if next panics.
func (s *Shared) Recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler: // asks the HTTP server to close the connection
				panic(p)
			default:
				_ = s.Panicked(p, r.URL.Path)
				http.Error(w, panicked, http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
