package redisconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options say where Redis is and how to connect to it. What an operator writes is given as it was written; errors
// name the setting that is wrong, and no error and no log line has a password in it.
type Options struct {
	// Settings is what the names of the settings begin with, for errors: "REDIS" (default) or "REDIS_PERSECOND".
	Settings string

	// Type is SINGLE (default), SENTINEL or CLUSTER, in capitals or not.
	Type string
	// URL is required. With SINGLE: host:port, the path of a unix socket, or a URL with the scheme redis, rediss (TLS) or
	// unix. With SENTINEL: the primary's name, then the host:port of sentinels, with commas between. With CLUSTER: the
	// host:port of nodes, with commas between; the others are found.
	URL string
	// Network is "tcp", "tcp4", "tcp6" or "unix", and is read where there is one server: sentinels and clusters are reached
	// over TCP. Default: unix if the URL is a path, else tcp. A URL with a scheme needs none.
	Network string

	// Auth is "password" or "user:password"; a password with a colon in it is written ":password". It beats credentials
	// within the URL. Default: none.
	Auth string
	// AuthFile is the path of a file that holds what Auth would say. It is read for each new connection: when it changes,
	// new connections use what it says then, and the ones that are there go on. While it cannot be read, or is empty,
	// what it said last is used. Default: none.
	AuthFile string
	// SentinelAuth is for sentinels what Auth is for the servers they watch over. Default: none.
	SentinelAuth string

	TLS TLSOptions

	// PoolSize is how many connections there may be, on a cluster to each node. Default DefaultPoolSize.
	PoolSize int
	// OnEmpty is what a call does that finds all of them in use: WAIT (default) until one is free or the call's deadline
	// is near; ERROR fails at once; CREATE makes another one, closed after use, up to 16 times PoolSize in all, and then
	// waits.
	OnEmpty string
	// DialTimeout bounds how long a connection may take to be made, with its TLS handshake and its login. A call does not wait
	// for it beyond its own deadline, and the connection serves the next one. Default DefaultTimeout. With SENTINEL at most 2 s, because
	// asking a sentinel that is gone is part of it.
	DialTimeout time.Duration

	Connections *Connections // counts them; nil: nobody does

	// Breaker puts a breaker before every node: while a node does not answer, calls to it fail at once instead of waiting until their
	// time is up. nil: none.
	Breaker *BreakerOptions

	Logger *slog.Logger // default slog.Default()
}

// The defaults that flags and stores share.
const (
	DefaultPoolSize = 10
	DefaultTimeout  = 10 * time.Second // to connect, and for an answer
)

const (
	single   = "SINGLE"
	sentinel = "SENTINEL"
	cluster  = "CLUSTER"
)

const (
	createFactor = 16 // how many times PoolSize OnEmpty CREATE may reach

	// A sentinel, or a node that is asked who has which slots, that does not answer within this is passed over.
	topologyTimeout     = 500 * time.Millisecond
	sentinelDialTimeout = 2 * time.Second // there is no other way to bound the dialling of sentinels

	lookTimeout = 3 * time.Second // for asking sentinels, in vain at first
	// callTimeout bounds a call without a deadline, or Options.DialTimeout if that is longer.
	callTimeout = 5 * time.Second

	// A cluster's topology is asked for when a node answers that a slot has moved, or does not answer; beyond that only
	// to notice nodes that nobody is sent to.
	reloadInterval = 10 * time.Second

	// maxRedirects is how often a call follows a slot that has moved or is moving. Two are the most that one migration
	// needs.
	maxRedirects = 3
)

// Dial returns a client fit for Options.Client. It does not connect yet: connections are made when they
// are needed, and again after they broke. Only primaries are asked.
//
// The client never sends a command again that may have been executed. It does follow a cluster's redirections, and may
// try again when no connection could be made.
func Dial(opts Options) (goredis.UniversalClient, error) {
	opts = opts.defaults()
	where, err := opts.address()
	if err != nil {
		return nil, err
	}
	auth, err := opts.credentials(where)
	if err != nil {
		return nil, err
	}
	d := &dialer{timeout: opts.DialTimeout, connections: opts.Connections}
	d.unanswered = seldom(10*time.Second, func() {
		opts.Logger.Warn(fmt.Sprintf("Redis accepts connections and does not answer the TLS handshake: it hangs, or it does not speak TLS; then unset %s, or write redis:// in place of rediss://", opts.setting("TLS")))
	})
	if opts.TLS.Enabled || where.tls {
		if d.tls, err = openTLS(&opts); err != nil {
			return nil, err
		}
	} else if opts.TLS != (TLSOptions{}) {
		opts.Logger.Warn(fmt.Sprintf("%[1]s_ settings are not used, because %[1]s is not true: connections to Redis are not encrypted", opts.setting("TLS")))
	}
	if opts.SentinelAuth != "" && where.kind != sentinel {
		opts.Logger.Warn(fmt.Sprintf("%s is not used, because %s is %s", opts.setting("SENTINEL_AUTH"), opts.setting("TYPE"), where.kind))
	}
	pool, err := opts.pool()
	if err != nil {
		return nil, err
	}

	guards := newBreakers(opts.Breaker, opts.Logger)
	switch where.kind {
	case cluster:
		return dialCluster(where, auth, pool, d, guards), nil
	case sentinel:
		return dialSentinel(&opts, where, auth, pool, d, guards), nil
	default:
		return dialSingle(where, auth, pool, d, guards), nil
	}
}

func (o Options) defaults() Options {
	if o.Settings == "" {
		o.Settings = "REDIS"
	}
	if o.PoolSize <= 0 {
		o.PoolSize = DefaultPoolSize
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// setting is the full name of a setting.
func (o *Options) setting(name string) string { return o.Settings + "_" + name }

// SettingError is a setting that cannot be used.
type SettingError struct {
	Setting string // its full name, such as REDIS_URL
	Err     error  // continues a sentence that the name begins: what is wrong, and what to write
}

func (e *SettingError) Error() string { return e.Setting + " " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// wrong returns a SettingError. The text says what is wrong, and what to write.
func (o *Options) wrong(setting, format string, args ...any) error {
	return &SettingError{o.setting(setting), fmt.Errorf(format, args...)}
}

// pool is what the client library is told of connections.
type pool struct {
	size    int           // most in use
	keep    int           // most kept, 0: as many as may be in use
	timeout time.Duration // until a call that finds none free fails, 0: the library's, beyond any deadline that is sensible
	dial    time.Duration
	aside   func() *aside // for the connections to one server
}

func (o *Options) pool() (pool, error) {
	p := pool{size: o.PoolSize, dial: o.DialTimeout, aside: func() *aside { return nil }}
	switch strings.ToUpper(o.OnEmpty) {
	case "", "WAIT":
	case "ERROR":
		p.timeout, p.aside = 1, func() *aside { return new(aside) }
	case "CREATE":
		p.size, p.keep = o.PoolSize*createFactor, o.PoolSize
	default:
		return pool{}, o.wrong("POOL_ON_EMPTY_BEHAVIOR", "is %q: write WAIT, CREATE or ERROR", o.OnEmpty)
	}
	return p, nil
}

// What no command of ours needs is off everywhere below: RESP3 and what comes with it, the library's introduction of
// itself, a second pool for pipelines. Each would cost a round trip or a check per connection or call.

func unattended() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func dialSingle(where address, auth *credentials, p pool, d *dialer, guards *breakers) goredis.UniversalClient {
	c := goredis.NewClient(&goredis.Options{
		Network:                  where.network,
		Addr:                     where.hosts[0],
		Dialer:                   d.dial,
		DialTimeout:              p.dial,
		DialerRetries:            1, // the next call tries again, and a breaker decides when
		PoolSize:                 p.size,
		MaxIdleConns:             p.keep,
		PoolTimeout:              p.timeout,
		ReadTimeout:              max(callTimeout, p.dial),
		ContextTimeoutEnabled:    true,
		MaxRetries:               -1,
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: unattended(),
		PipelinePoolSize:         -1,
	})
	guard := guards.guard(where.hosts[0])
	c.AddHook(hook{lost: d.retire, login: &login{auth, where.db}, spare: &spare{client: c}, guard: guard, aside: p.aside()})
	guard.before(c)
	return c
}

func dialSentinel(opts *Options, where address, auth *credentials, p pool, d *dialer, guards *breakers) goredis.UniversalClient {
	user, password := split(opts.SentinelAuth)
	timeout := min(p.dial, sentinelDialTimeout)
	d.timeout, d.moves = timeout, true
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{
		MasterName:            where.primary,
		SentinelAddrs:         where.hosts,
		SentinelUsername:      user,
		SentinelPassword:      password,
		Dialer:                d.dial,
		DialTimeout:           timeout,
		DialerRetries:         1,
		PoolSize:              p.size,
		MaxIdleConns:          p.keep,
		PoolTimeout:           p.timeout,
		ReadTimeout:           topologyTimeout, // what sentinels get; that of calls follows below
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		Protocol:              2,
		DisableIdentity:       true,
		PipelinePoolSize:      -1,
	})
	guard := guards.guard(c.Options().Addr)
	c.AddHook(hook{login: &login{auth: auth}, guard: guard}) // the pool dials with the original's hooks, calls are made with the copy's
	calls := c.WithTimeout(max(callTimeout, p.dial))
	calls.AddHook(hook{lost: d.retire, look: &look{dial: c.Options().Dialer}, spare: &spare{client: calls}, aside: p.aside()})
	guard.before(calls)
	return calls
}

func dialCluster(where address, auth *credentials, p pool, d *dialer, guards *breakers) goredis.UniversalClient {
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: where.hosts,
		NewClient: func(o *goredis.Options) *goredis.Client {
			node := goredis.NewClient(o)
			// A node that turned into a replica sends calls on by itself: its connections need not be left.
			guard := guards.guard(o.Addr)
			node.AddHook(hook{topology: topologyTimeout, login: &login{auth: auth}, spare: &spare{client: node}, guard: guard, aside: p.aside()})
			guard.before(node)
			return node
		},
		MaxRedirects:               maxRedirects,
		MinRetryBackoff:            -1, // a redirection is followed at once, in pipelines too
		DisableRoutingPolicies:     true,
		ClusterStateReloadInterval: reloadInterval,
		Dialer:                     d.dial,
		DialTimeout:                p.dial,
		DialerRetries:              1,
		PoolSize:                   p.size,
		MaxIdleConns:               p.keep,
		PoolTimeout:                p.timeout,
		ReadTimeout:                max(callTimeout, p.dial),
		ContextTimeoutEnabled:      true,
		MaxRetries:                 -1,
		Protocol:                   2,
		DisableIdentity:            true,
		MaintNotificationsConfig:   unattended(),
		PipelinePoolSize:           -1,
	})
	// The library asks for the topology when a node says that a slot has moved, but not when a node is gone (calls would
	// go there until the next interval, long after a replica has taken its place), nor when the first call has too
	// little time for it.
	d.broken = seldom(100*time.Millisecond, func() { c.ReloadState(context.Background()) })
	return c
}

// LogTo sends what the client library has to say (every dial that failed, and little else) to a logger, at level debug:
// while Redis is gone that is a line per call. Without it the library writes to standard error. It is meant for the
// whole process, before the first Dial.
func LogTo(l *slog.Logger) { goredis.SetLogger(clientLog{l}) }

type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.Enabled(ctx, slog.LevelDebug) {
		text, _ := withoutArguments(fmt.Sprintf(format, v...))
		l.DebugContext(ctx, text)
	}
}

var errEmpty = errors.New("is empty")
