package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// DialOptions say where Redis is and how to connect to it.
type DialOptions struct {
	// URL is host:port, the path of a unix socket, or a URL with the scheme redis, rediss (TLS) or unix. Required.
	URL string
	// Network is "tcp" or "unix". Default: unix if the URL is a path, else tcp. A URL with a scheme needs none.
	Network string
	// Auth is "password" or "user:password". It beats credentials within the URL. Default: none.
	Auth string
	// TLS makes connections encrypted. Default: only with rediss.
	TLS *tls.Config

	PoolSize    int           // most connections; default 64
	DialTimeout time.Duration // until a connection is made; calls do not wait for it beyond their own deadline. Default 1 s
}

// Dial returns a client for a single Redis, fit for Options.Client. It does not connect yet: connections are made when
// they are needed, and again after they broke.
func Dial(opts DialOptions) (goredis.UniversalClient, error) {
	o, err := clientOptions(opts)
	if err != nil {
		return nil, err
	}
	return goredis.NewClient(o), nil
}

func clientOptions(opts DialOptions) (*goredis.Options, error) {
	o, err := address(opts.URL, opts.Network)
	if err != nil {
		return nil, fmt.Errorf("read Redis URL: %w", err)
	}
	if user, password, ok := strings.Cut(opts.Auth, ":"); ok {
		o.Username, o.Password = user, password
	} else if opts.Auth != "" {
		o.Username, o.Password = "", opts.Auth
	}
	if opts.TLS != nil {
		o.TLSConfig = opts.TLS
	}
	o.PoolSize = opts.PoolSize
	if o.PoolSize <= 0 {
		o.PoolSize = 64
	}
	o.DialTimeout = opts.DialTimeout
	if o.DialTimeout <= 0 {
		o.DialTimeout = time.Second
	}

	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1   // a call that may have counted is not sent again
	o.DialerRetries = 1 // the next call tries again, and a breaker decides when
	// No command of ours needs what follows; each would cost a round trip or a check per connection or call.
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.PipelinePoolSize = -1
	return o, nil
}

func address(url, network string) (*goredis.Options, error) {
	if url == "" {
		return nil, errors.New("it is empty")
	}
	if strings.Contains(url, "://") {
		o, err := goredis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		if network != "" && network != o.Network {
			return nil, fmt.Errorf("its scheme means %s, but the socket type is %s", o.Network, network)
		}
		return o, nil
	}
	if network == "" {
		network = "tcp"
		if strings.HasPrefix(url, "/") {
			network = "unix"
		}
	}
	switch network {
	case "tcp", "unix":
		return &goredis.Options{Network: network, Addr: url}, nil
	default:
		return nil, fmt.Errorf("unknown socket type %q: write tcp or unix", network)
	}
}

// LogTo sends what the client library has to say (every dial that failed, and little else) to a logger, at level debug:
// while Redis is gone that is a line per call. Without it the library writes to standard error. It is meant for the
// whole process, before the first Dial.
func LogTo(l *slog.Logger) { goredis.SetLogger(clientLog{l}) }

type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.Enabled(ctx, slog.LevelDebug) {
		l.DebugContext(ctx, fmt.Sprintf(format, v...))
	}
}
