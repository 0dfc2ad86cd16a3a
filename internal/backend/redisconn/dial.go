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

// Options describe where Redis is and how to connect to it. Texts are taken as an operator writes them. Errors are
// SettingErrors, and no error or log line contains a password.
type Options struct {
	// Settings is the prefix of the settings' names in errors: "REDIS" (default) or "REDIS_PERSECOND".
	Settings string

	// Type is SINGLE (default), SENTINEL or CLUSTER, in any case.
	Type string
	// URL is required. With SINGLE: host:port, the path of a unix socket, or a URL with the scheme redis, rediss (TLS) or
	// unix. With SENTINEL: the primary's name, then sentinels, separated by commas. With CLUSTER: some nodes, separated by
	// commas; the others are discovered. Sentinels and nodes are host:port or a URL; the first user and password in these
	// URLs are for all sentinels, or for all nodes.
	URL string
	// Network is "tcp", "tcp4", "tcp6" or "unix". It applies to SINGLE only: sentinels and clusters are reached over TCP.
	// Default: unix if the URL is a path, otherwise tcp. A URL with a scheme needs none.
	Network string

	// Auth is "password" or "user:password"; a password that contains a colon is written ":password". It overrides
	// the password in the URL, and the user if it has one. Default: none.
	Auth string
	// AuthFile is the path of a file with the content of Auth. It is read for each new connection: after a change new
	// connections use the new content, and open ones continue. While it cannot be read, or is empty, its last good content
	// is used. Default: none.
	AuthFile string
	// SentinelAuth is Auth for the sentinels. Default: none.
	SentinelAuth string

	TLS TLSOptions

	// Like is a client that the new one connects as: to the same servers, with the same dialer, TLS and credentials, but
	// with separate connections and settings. The options above are not used then. IsKnown tells which clients it may be.
	// Default: none.
	Like goredis.UniversalClient

	// PoolSize is how many connections there may be, on a cluster to each node. Default DefaultPoolSize.
	PoolSize int
	// OnEmpty controls calls that find all connections in use. WAIT (default): wait until one is free, up to the call's
	// deadline. ERROR: fail immediately. CREATE: make another one that is closed after use, up to 16 times PoolSize in
	// all, then wait.
	OnEmpty string
	// DialTimeout bounds how long it takes to make a connection, with its TLS handshake and its login. A call does not
	// wait for that beyond its deadline, and the connection serves the next call. Default DefaultTimeout. With SENTINEL at
	// most 2 s, because it includes asking a sentinel that may be gone.
	DialTimeout time.Duration

	Connections *Connections // counts the connections; may be nil

	// Lanes is how many of the connections to a single server are for single calls, and not in the client's pool: see
	// LanesOf. One connection is always left for the pool.
	Lanes int

	// Breaker gives every node a breaker: while a node does not answer, calls to it fail immediately instead of waiting
	// until their time is up. Nil disables breakers.
	Breaker *BreakerOptions

	Logger *slog.Logger // default slog.Default()
}

// The defaults that flags and stores share.
const (
	DefaultPoolSize = 10
	DefaultTimeout  = 10 * time.Second // time limit for connecting, and for an answer
)

const (
	single   = "SINGLE"
	sentinel = "SENTINEL"
	cluster  = "CLUSTER"
)

const (
	createFactor = 16 // OnEmpty CREATE makes up to this many times PoolSize connections

	// topologyTimeout is how long a sentinel, or a node that is asked for a cluster's slots, may take before the next one
	// is asked.
	topologyTimeout     = 500 * time.Millisecond
	sentinelDialTimeout = 2 * time.Second // the library has no other bound on dialling sentinels

	// callTimeout bounds a call without a deadline, unless Options.DialTimeout is longer.
	callTimeout = 5 * time.Second

	// reloadInterval is how often a cluster's topology is asked for without a reason, to notice nodes that no call is sent
	// to. It is asked for immediately when a node answers that a slot has moved, or does not answer.
	reloadInterval = 10 * time.Second

	// maxRedirects is how often a call follows a slot that has moved or is moving. One migration needs two at most.
	maxRedirects = 3
)

// Dial returns a client. It does not connect yet: connections are made when they are needed, and again after they
// broke. Commands go to primaries only.
//
// The client never sends a command again that may have been executed. It follows a cluster's redirections, and may
// try again if no connection could be made.
func Dial(opts Options) (goredis.UniversalClient, error) {
	opts = opts.defaults()
	if opts.Like != nil {
		return opts.dialLike()
	}
	where, err := opts.address()
	if err != nil {
		return nil, err
	}
	auth, err := opts.credentials(where)
	if err != nil {
		return nil, err
	}
	for _, note := range where.notes {
		opts.Logger.Warn("a part of this setting is ignored, or may be a mistake", "setting", opts.setting("URL"), "hint",
			note)
	}
	d := &dialer{timeout: opts.DialTimeout, connections: opts.Connections, settings: opts.Settings}
	d.onNoAnswer = atMostEvery(10*time.Second, func() {
		opts.Logger.Warn(d.advice(noHandshake))
	})
	if opts.TLS.Enabled || where.tls {
		if d.tls, err = openTLS(&opts); err != nil {
			return nil, err
		}
	} else if opts.TLS != (TLSOptions{}) {
		opts.Logger.Warn(fmt.Sprintf("%[1]s_ settings are not used, because %[1]s is not true: connections to Redis are "+
			"not encrypted", opts.setting("TLS")))
	}
	if opts.SentinelAuth != "" && where.kind != sentinel {
		opts.Logger.Warn(fmt.Sprintf("%s is not used, because %s is %s", opts.setting("SENTINEL_AUTH"), opts.setting("TYPE"),
			where.kind))
	}
	pool, err := opts.pool()
	if err != nil {
		return nil, err
	}

	breakers := newBreakers(opts.Breaker, opts.Logger, d.explain)
	switch where.kind {
	case cluster:
		return dialCluster(where, auth, pool, d, breakers), nil
	case sentinel:
		return dialSentinel(&opts, where, auth, pool, d, breakers), nil
	default:
		return dialSingle(where, auth, pool, d, breakers, opts.Lanes), nil
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
	Err     error  // the mistake and the correction; continues a sentence that starts with the name
}

func (e *SettingError) Error() string { return e.Setting + " " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// wrong returns a SettingError. The text describes the mistake and how to correct it.
func (o *Options) wrong(setting, format string, args ...any) error {
	return &SettingError{o.setting(setting), fmt.Errorf(format, args...)}
}

// poolOptions are the settings of the client library's connection pool.
type poolOptions struct {
	size int // most connections in use
	keep int // most connections that are kept open; 0 means the value of size
	// how long a call waits for a free connection; 0 means the library's default, which is longer than any sensible
	// deadline
	timeout time.Duration
	dial    time.Duration  // time limit for connecting
	probes  func() *probes // makes the probes of one server
}

func (o *Options) pool() (poolOptions, error) {
	p := poolOptions{size: o.PoolSize, dial: o.DialTimeout, probes: func() *probes { return nil }}
	switch strings.ToUpper(o.OnEmpty) {
	case "", "WAIT":
	case "ERROR":
		p.timeout, p.probes = 1, func() *probes { return new(probes) }
	case "CREATE":
		p.size, p.keep = o.PoolSize*createFactor, o.PoolSize
	default:
		return poolOptions{}, o.wrong("POOL_ON_EMPTY_BEHAVIOR", "is %q: write WAIT, CREATE or ERROR", o.OnEmpty)
	}
	return p, nil
}

// The clients below leave out features that our commands do not need: RESP3 and its features, CLIENT SETINFO, and a
// second pool for pipelines. Each would cost a round trip or a check per connection or call.

func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func dialSingle(where address, auth *credentials, p poolOptions, d *dialer, all *breakers,
	lanes int) goredis.UniversalClient {
	b := all.newBreaker(where.hosts[0])
	h := hook{retire: d.retire, unanswered: d.explain, login: &login{auth, where.db}, breaker: b, probes: p.probes()}
	lanes = max(min(lanes, p.size-1), 0)
	c := goredis.NewClient(&goredis.Options{
		Network:                  where.network,
		Addr:                     where.hosts[0],
		Dialer:                   d.dial,
		DialTimeout:              p.dial,
		DialerRetries:            1, // the next call tries again, and a breaker decides when
		PoolSize:                 p.size - lanes,
		MaxIdleConns:             p.keep,
		PoolTimeout:              p.timeout,
		ReadTimeout:              max(callTimeout, p.dial),
		ContextTimeoutEnabled:    true,
		MaxRetries:               -1,
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: noMaintenance(),
		PipelinePoolSize:         -1,
	})
	h.warmup = &warmup{client: c}
	c.AddHook(h)
	b.install(c)
	if lanes == 0 {
		return c
	}
	l := &Lanes{network: where.network, addr: where.hosts[0], timeout: p.dial, dialer: d, hook: h}
	l.open(lanes)
	return &laned{c, l}
}

func dialSentinel(opts *Options, where address, auth *credentials, p poolOptions, d *dialer,
	all *breakers) goredis.UniversalClient {
	who := split(opts.SentinelAuth).or(where.account)
	timeout := min(p.dial, sentinelDialTimeout)
	d.timeout, d.moves = timeout, true
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{
		MasterName:            where.primary,
		SentinelAddrs:         where.hosts,
		SentinelUsername:      who.user,
		SentinelPassword:      who.password,
		Dialer:                d.dial,
		DialTimeout:           timeout,
		DialerRetries:         1,
		PoolSize:              p.size,
		MaxIdleConns:          p.keep,
		PoolTimeout:           p.timeout,
		ReadTimeout:           topologyTimeout, // bounds questions to sentinels; calls get another timeout below
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		Protocol:              2,
		DisableIdentity:       true,
		PipelinePoolSize:      -1,
	})
	b := all.newBreaker(c.Options().Addr)
	undialled := func(err error) error { return opts.ofSentinels(where, err) }
	// the pool dials with the hooks of the original
	c.AddHook(hook{undialled: undialled, login: &login{auth: auth}, breaker: b})
	calls := c.WithTimeout(max(callTimeout, p.dial)) // calls are made with the hooks of the copy
	calls.AddHook(hook{retire: d.retire, unanswered: d.explain, pollSentinels: pollSentinels(c.Options().Dialer),
		warmup: &warmup{client: calls}, probes: p.probes()})
	b.install(calls)
	return calls
}

func dialCluster(where address, auth *credentials, p poolOptions, d *dialer, all *breakers) goredis.UniversalClient {
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: where.hosts,
		NewClient: func(o *goredis.Options) *goredis.Client {
			o.Addr = withHost(o.Addr, hostOf(where.hosts[0]))
			node := goredis.NewClient(o)
			// A node that has become a replica redirects calls: its connections need not be retired.
			b := all.newBreaker(o.Addr)
			node.AddHook(hook{unanswered: d.explain, topologyTimeout: topologyTimeout, topology: all.keep, host: hostOf(o.Addr),
				login: &login{auth: auth}, warmup: &warmup{client: node}, breaker: b, probes: p.probes()})
			b.install(node)
			return node
		},
		MaxRedirects:               maxRedirects,
		MinRetryBackoff:            -1, // follow redirections immediately, in pipelines too
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
		MaintNotificationsConfig:   noMaintenance(),
		PipelinePoolSize:           -1,
	})
	// The library asks for the topology when a node answers that a slot has moved. It does not when a node is gone (calls
	// would go there until the next interval, long after a replica has taken its place), nor when the first call has too
	// little time for it.
	d.onBroken = atMostEvery(100*time.Millisecond, func() { c.ReloadState(context.Background()) })
	return c
}

// LogTo sends the client library's log (mostly dials that failed) to a logger, at level debug: while Redis is gone
// there may be a line per call. By default the library writes to standard error. LogTo acts on the whole process; call
// it before the first Dial.
func LogTo(l *slog.Logger) { goredis.SetLogger(clientLog{l}) }

type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(ctx context.Context, format string, v ...any) {
	if l.Enabled(ctx, slog.LevelDebug) {
		text, _ := cutArguments(fmt.Sprintf(format, v...))
		l.DebugContext(ctx, text)
	}
}

var errEmpty = errors.New("is empty")
