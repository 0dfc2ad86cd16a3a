package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// Topology is the kind of a Redis: a single server, with Sentinels, or a cluster.
type Topology string

// The topologies.
const (
	Single   Topology = "SINGLE"
	Sentinel Topology = "SENTINEL"
	Cluster  Topology = "CLUSTER"
)

// Options configure the connection to a Redis, and the keys of counters there. One of URL and Client is required.
// Errors name the variables of the service: REDIS_URL is the field URL.
type Options struct {
	// Client is a client of the program, instead of the URL, Auth and TLS fields. A limiter connects as this client does:
	// to the same servers, with the same dialer, TLS, user and password. It uses a separate pool, so that neither waits
	// for the other. Other settings of the client do not count, nor do its hooks and OnConnect. Keep it open until the
	// limiter is closed: a client with sentinels finds the primary.
	//
	// Only a type that go-redis does not define is used as it is. It loses a connection to each limiter, which waits for
	// messages; while Redis hangs, each decision waits for its Timeout; and Redis' replies are not bounded. A Ring is an
	// error.
	Client goredis.UniversalClient

	// URL is host:port, redis://host:port/db, rediss://host:port (TLS), or the path of a unix socket. For Sentinel it is
	// master,sentinel,sentinel and so on; for Cluster node,node and so on.
	URL  string
	Type Topology // default Single

	Auth         string // password, or user:password
	AuthFile     string // file with the same; it is read for every new connection
	SentinelAuth string // password of the sentinels, or user:password

	TLS        bool   // encrypt connections
	CACert     string // file of the authorities to trust; empty for the system's
	ClientCert string // file of the client certificate
	ClientKey  string // file of its key

	PoolSize int           // most connections; on a cluster, to each node. Default 10
	Timeout  time.Duration // longest wait for an answer, if the deadline of the call is not nearer. Default 1 s

	// KeyPrefix is the prefix of every counter's key. Processes that share counters need the same one; it is
	// CACHE_KEY_PREFIX of the service.
	KeyPrefix string

	// LyftKeys gives counters the keys of envoyproxy/ratelimit, as REDIS_KEY_FORMAT=lyft of the service does.
	LyftKeys bool

	// Overrides follows the overrides that operators set in this Redis. Default false.
	Overrides bool
}

const defaultTimeout = time.Second

// New returns a store for Options.Store of package ratelimit. ratelimit.Open reports mistakes in its options, and
// connects. Limiters do not share connections: each has at most PoolSize for decisions, two that learn of resets by
// other processes, and up to four for overrides.
//
// A limiter with a single Redis has six goroutines while nothing is decided: two send decisions, and there are more
// only while more round trips are in flight; two send and receive resets and refunds; one counts the processes that
// share the Redis; one gives back unused permits of leases. With overrides and a directory of rules there is one more
// each. All of them end with Close.
func New(o Options) *ratelimit.Store { return &ratelimit.Store{Open: o.open} }

func (o *Options) open(tasks *parts.Tasks, s parts.StoreOptions) (*parts.Counters, error) {
	at, err := o.address(s.Logger)
	if err != nil {
		return nil, err
	}
	counters, err := assembly.Open(tasks, assembly.Options{
		MaxCounters: s.MaxCounters, Redis: at, KeyPrefix: o.KeyPrefix, LyftKeys: o.LyftKeys,
		LyftJitter: redis.DefaultLyftJitter, Logger: s.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("redisstore: %w", err)
	}
	opened := &parts.Counters{Store: counters.Store, Local: counters.Local, Keys: counters.Keys}
	opened.Joined = func(l *limiter.Limiter) { counters.Join(tasks, fleet.Options{Changed: l.SetReplicas}) }
	if o.Overrides {
		source, err := at.Overrides(tasks, nil, redissource.Options{Prefix: o.KeyPrefix, Log: s.Logger})
		if err != nil {
			return nil, fmt.Errorf("redisstore: %w", err)
		}
		opened.Overrides = source
	}
	return opened, nil
}

// address returns the options for the Redis, or an error if it cannot be used.
func (o *Options) address(log *slog.Logger) (*assembly.Redis, error) {
	if o.Client != nil {
		if o.URL != "" {
			return nil, errors.New("redisstore: Options has a Client and a URL: set one of them")
		}
		if _, ring := o.Client.(*goredis.Ring); ring {
			return nil, errors.New("redisstore: Options.Client is a Ring, which is not supported: use a cluster")
		}
	}
	return &assembly.Redis{
		Client: o.Client,
		Connect: redisconn.Options{
			Type: string(o.Type), URL: o.URL, Auth: o.Auth, AuthFile: o.AuthFile, SentinelAuth: o.SentinelAuth,
			TLS:      redisconn.TLSOptions{Enabled: o.TLS, CACert: o.CACert, ClientCert: o.ClientCert, ClientKey: o.ClientKey},
			PoolSize: o.PoolSize, Logger: log,
		},
		Timeout: cmp.Or(o.Timeout, defaultTimeout),
	}, nil
}
