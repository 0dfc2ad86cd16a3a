package main

import (
	"log/slog"
	"reflect"
	"strings"
	"time"
)

// acceptedOptions are settings of envoyproxy/ratelimit that change nothing here. They are accepted so that a deployment
// starts without changes. The settings that are set are logged once, with one line per reason. A field is nil unless it
// is set. A value equal to the tag unless is not logged, because the service does that anyway.
type acceptedOptions struct {
	WatchRoot *bool `name:"runtime-watch-root" env:"RUNTIME_WATCH_ROOT" help:"Changes are found however they are made." because:"changes of rule files are found however they are made"`
	IgnoreDot *bool `name:"runtime-ignoredotfiles" env:"RUNTIME_IGNOREDOTFILES" help:"Files whose name starts with a dot are never rule files." unless:"true" because:"files whose name starts with a dot are never rule files"`

	ReadOnly *bool `name:"redis-close-connection-on-readonly-error" env:"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR" help:"Connections to a server that has become a replica are always closed." unless:"true" because:"connections to a Redis that has become a replica are always closed"`

	Window      *time.Duration `name:"redis-pipeline-window" env:"REDIS_PIPELINE_WINDOW" hidden:"" because:"requests in flight always share round trips"`
	Limit       *int           `name:"redis-pipeline-limit" env:"REDIS_PIPELINE_LIMIT" hidden:"" because:"requests in flight always share round trips"`
	Parallelism *int           `name:"redis-cluster-pipeline-parallelism" env:"REDIS_CLUSTER_PIPELINE_PARALLELISM" hidden:"" because:"requests in flight always share round trips"`

	PerSecondWindow      *time.Duration `name:"redis-persecond-pipeline-window" env:"REDIS_PERSECOND_PIPELINE_WINDOW" hidden:"" because:"requests in flight always share round trips"`
	PerSecondLimit       *int           `name:"redis-persecond-pipeline-limit" env:"REDIS_PERSECOND_PIPELINE_LIMIT" hidden:"" because:"requests in flight always share round trips"`
	PerSecondParallelism *int           `name:"redis-persecond-cluster-pipeline-parallelism" env:"REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM" hidden:"" because:"requests in flight always share round trips"`

	MemcacheHosts        *string        `name:"memcache-host-port" env:"MEMCACHE_HOST_PORT" hidden:"" because:"nothing is counted in memcached"`
	MemcacheIdle         *int           `name:"memcache-max-idle-conns" env:"MEMCACHE_MAX_IDLE_CONNS" hidden:"" because:"nothing is counted in memcached"`
	MemcacheSRV          *string        `name:"memcache-srv" env:"MEMCACHE_SRV" hidden:"" because:"nothing is counted in memcached"`
	MemcacheRefresh      *time.Duration `name:"memcache-srv-refresh" env:"MEMCACHE_SRV_REFRESH" hidden:"" because:"nothing is counted in memcached"`
	MemcacheTLS          *bool          `name:"memcache-tls" env:"MEMCACHE_TLS" hidden:"" because:"nothing is counted in memcached"`
	MemcacheCA           *string        `name:"memcache-tls-cacert" env:"MEMCACHE_TLS_CACERT" hidden:"" because:"nothing is counted in memcached"`
	MemcacheCert         *string        `name:"memcache-tls-client-cert" env:"MEMCACHE_TLS_CLIENT_CERT" hidden:"" because:"nothing is counted in memcached"`
	MemcacheKey          *string        `name:"memcache-tls-client-key" env:"MEMCACHE_TLS_CLIENT_KEY" hidden:"" because:"nothing is counted in memcached"`
	MemcacheSkipHostname *bool          `name:"memcache-tls-skip-hostname-verification" env:"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION" hidden:"" because:"nothing is counted in memcached"`

	ServerCA *string `name:"grpc-server-tls-ca-cert" env:"GRPC_SERVER_TLS_CA_CERT" hidden:"" because:"it has none in envoyproxy/ratelimit either: set GRPC_CLIENT_TLS_CACERT to require client certificates"`
}

// log writes one line for each reason with the settings that are set.
func (o *acceptedOptions) log(to *slog.Logger) {
	fields := reflect.ValueOf(o).Elem()
	var reasons []string
	named := make(map[string][]string) // the variables that are set, by reason
	for field, v := range fields.Fields() {
		if v.IsNil() {
			continue
		}
		value, because := v.Elem(), field.Tag.Get("because")
		if value.Kind() == reflect.String && value.String() == "" || value.Kind() == reflect.Bool &&
			field.Tag.Get("unless") == "true" && value.Bool() {
			continue
		}
		if named[because] == nil {
			reasons = append(reasons, because)
		}
		named[because] = append(named[because], field.Tag.Get("env"))
	}
	for _, because := range reasons {
		to.Info("accepted without effect", "variables", strings.Join(named[because], ", "), "because", because)
	}
}
