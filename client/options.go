package client

import (
	"cmp"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/limits"
)

const (
	defaultTimeout    = 20 * time.Millisecond
	defaultMaxDenials = 10_000
)

// Options are the settings of a Client. The zero value is ready to use.
type Options struct {
	// Timeout is how long a call may take if its context does not end earlier. Default 20 ms.
	Timeout time.Duration

	// OnFailure decides when the service does not: it does not answer in time, it cannot be reached, or its store of the
	// counters fails and no on_error of the rules applies. Default limits.OnFailureAllow.
	OnFailure limits.OnFailure

	// MaxDenials is how many denied requests the client remembers. Beyond that, a denial replaces another one that has
	// expired, or one of a few that expire soonest; forgetting one costs a call. Requests of more than 1 KiB are not
	// remembered. Default 10,000, with about 450 bytes each; a negative number disables the cache.
	MaxDenials int

	// Observer is called after each decision of Decide, Allow, Wait and Reserve. Default none.
	Observer limits.Observer

	// TLS encrypts the connection; nil leaves it unencrypted, as the service expects unless it has a certificate.
	TLS *tls.Config

	// DialOptions are added to the connection's options. They take precedence over the client's: round_robin over all
	// addresses of the name, a reconnect attempt at least every 5 s, and pings while calls get no answer for 10 s.
	DialOptions []grpc.DialOption
}

func (o *Options) timeout() time.Duration {
	if o.Timeout < 0 {
		return defaultTimeout
	}
	return cmp.Or(o.Timeout, defaultTimeout)
}
