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

// Topology says whether a Redis is a single server, has Sentinels, or is a cluster.
type Topology string

// The topologies.
const (
	Single   Topology = "SINGLE"
	Sentinel Topology = "SENTINEL"
	Cluster  Topology = "CLUSTER"
)

// Options say how to reach a Redis, and which keys counters have there. One of URL and Client is required. Errors name the variables of the
// service: REDIS_URL is the field URL.
type Options struct {
	// Client is a client of the program's own. Its ContextTimeoutEnabled must be true. Of the other fields only
	// Timeout applies, and there are no circuit breakers: while Redis hangs, each decision waits for its timeout. What Redis sends is not bounded either: the
	// client library allocates whatever length a server announces.
	Client goredis.UniversalClient

	// URL is host:port, redis://host:port/db, rediss://host:port (TLS), or the path of a unix socket. For Sentinel it is
	// master,sentinel,sentinel and so on; for Cluster node,node and so on.
	URL  string
	Type Topology // default Single

	Auth         string // password, or user:password
	AuthFile     string // file with the same; it is read for every new connection
	SentinelAuth string // of the sentinels

	TLS        bool   // encrypt connections
	CACert     string // file of the authorities to trust; empty: the system's
	ClientCert string // file of the client certificate
	ClientKey  string // file of its key

	PoolSize int           // most connections; on a cluster, to each node. Default 10
	Timeout  time.Duration // longest wait for an answer, if the deadline of the call is not nearer. Default 1 s

	// KeyPrefix begins every counter's key. Processes that share counters need the same one; it is CACHE_KEY_PREFIX of the service.
	KeyPrefix string

	// LyftKeys gives counters the keys of envoyproxy/ratelimit, as REDIS_KEY_FORMAT=lyft of the service does.
	LyftKeys bool

	// Overrides follows the overrides that operators set in this Redis. Default: there are none.
	Overrides bool
}

const defaultTimeout = time.Second

// New returns a store for Options.Store of package ratelimit. ratelimit.Open reports what is wrong with its options, and connects. Each
// limiter has connections of its own.
func New(o Options) *ratelimit.Store { return &ratelimit.Store{Open: o.open} }

func (o *Options) open(tasks *parts.Tasks, s parts.StoreOptions) (*parts.Counters, error) {
	at, err := o.address(s.Logger)
	if err != nil {
		return nil, err
	}
	counters, err := assembly.Open(tasks, assembly.Options{
		MaxCounters: s.MaxCounters, Redis: at, KeyPrefix: o.KeyPrefix, LyftKeys: o.LyftKeys, LyftJitter: redis.DefaultLyftJitter, Logger: s.Logger,
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

// address says how to reach the Redis, or why it cannot be used.
func (o *Options) address(log *slog.Logger) (*assembly.Redis, error) {
	if o.Client != nil {
		if o.URL != "" {
			return nil, errors.New("redisstore: Options has a Client and a URL: set one of them")
		}
		if err := usable(o.Client); err != nil {
			return nil, err
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

// usable returns why a client of the program cannot be used.
func usable(client goredis.UniversalClient) error {
	obeysDeadlines := true // as a type of the program has to
	switch c := client.(type) {
	case *goredis.Client:
		obeysDeadlines = c.Options().ContextTimeoutEnabled
	case *goredis.ClusterClient:
		obeysDeadlines = c.Options().ContextTimeoutEnabled
	case *goredis.Ring:
		return errors.New("redisstore: Options.Client is a Ring, which is not supported: use a cluster")
	}
	if !obeysDeadlines {
		return errors.New("redisstore: Options.Client must have ContextTimeoutEnabled: without it a decision could outlast its deadline")
	}
	return nil
}
