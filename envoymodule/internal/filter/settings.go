package filter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// own are the settings that Envoy's rate limit filter does not have. Their names are those of the service's flags, with
// underscores.
type own struct {
	engineSettings

	SourceCluster string `json:"source_cluster"` // the value of Envoy's --service-cluster, which a module cannot ask for
	// Processors is Go's GOMAXPROCS. The default is Go's, but at least Envoy's concurrency and two more.
	Processors int `json:"gomaxprocs"`
}

// engineSettings are the settings of an engine. Filters with equal settings share one.
type engineSettings struct {
	storeSettings

	Rules  string `json:"rules"` // the directory of rule files
	Strict bool   `json:"strict_rules"`
	Merge  bool   `json:"merge_domain_config"`

	Overrides string `json:"overrides"` // redis, or a file; empty for no overrides

	Shadow    bool     `json:"shadow_mode"`
	Quota     bool     `json:"quota_mode"`
	Stop      bool     `json:"stop_cache_key_increment_when_overlimit"`
	Admission string   `json:"admission"`
	OnError   string   `json:"on_error"`
	Headers   []string `json:"response_headers"` // families
	Metadata  bool     `json:"response_dynamic_metadata"`
	Explain   bool     `json:"decision_metadata"`
	Months    bool     `json:"use_calendar_month_rate_limit"`
}

// storeSettings are the settings of a store. Engines with equal settings share their counters.
type storeSettings struct {
	MaxCounters float64 `json:"memory_max_counters"` // numbers may arrive as 2e+06
	DenialBytes float64 `json:"local_cache_size_in_bytes"`

	URL          string   `json:"redis_url"` // empty if counters are in memory
	Type         string   `json:"redis_type"`
	Auth         string   `json:"redis_auth"`
	AuthFile     string   `json:"redis_auth_file"`
	SentinelAuth string   `json:"redis_sentinel_auth"`
	Pool         float64  `json:"redis_pool_size"`
	Dial         duration `json:"redis_timeout"`
	Op           duration `json:"redis_op_timeout"`
	TLS          bool     `json:"redis_tls"`
	CACert       string   `json:"redis_tls_cacert"`
	ClientCert   string   `json:"redis_tls_client_cert"`
	ClientKey    string   `json:"redis_tls_client_key"`
	SkipHostname bool     `json:"redis_tls_skip_hostname_verification"`
	KeyFormat    string   `json:"redis_key_format"`
	KeyPrefix    string   `json:"cache_key_prefix"`
}

// duration is a time such as 500ms.
type duration struct{ time.Duration }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) (err error) {
	if d.Duration, err = time.ParseDuration(string(text)); err == nil && d.Duration < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	return err
}

// names returns the names of a struct's settings.
func names(of reflect.Type, all map[string]bool) map[string]bool {
	for field := range of.Fields() {
		if field.Anonymous {
			names(field.Type, all)
		} else {
			all[field.Tag.Get("json")] = true
		}
	}
	return all
}

var ownNames = names(reflect.TypeFor[own](), make(map[string]bool))

// read splits a configuration into our settings and those of Envoy's rate limit filter.
func read(config []byte) (*own, *ratelimitv3.RateLimit, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, nil, fmt.Errorf("filter_config must be a google.protobuf.Struct: %w", err)
	}
	ours := make(map[string]json.RawMessage)
	for name := range ownNames {
		if value, given := all[name]; given {
			ours[name] = value
			delete(all, name)
		}
	}
	o := new(own)
	if err := decode(ours, func(text []byte) error { return json.Unmarshal(text, o) }); err != nil {
		return nil, nil, err
	}
	f := new(ratelimitv3.RateLimit)
	if err := decode(all, func(text []byte) error { return protojson.Unmarshal(text, f) }); err != nil {
		return nil, nil, plain(err)
	}
	return o, f, errors.Join(o.check(), o.checkSourceCluster(f), checkFilter(f))
}

// checkSourceCluster returns an error if an action needs a setting that is missing. The policies of routes cannot be
// checked, because a route does not have its filter's settings.
func (o *own) checkSourceCluster(f *ratelimitv3.RateLimit) error {
	for i, r := range f.GetRateLimits() {
		for _, a := range r.GetActions() {
			if a.GetSourceCluster() != nil && o.SourceCluster == "" {
				return fmt.Errorf("rate_limits[%d]: the action source_cluster needs the setting source_cluster", i)
			}
		}
	}
	return nil
}

func decode(settings map[string]json.RawMessage, into func([]byte) error) error {
	text, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	return into(text)
}

// plain removes the spaces that protojson varies in its messages so that nobody compares them.
func plain(err error) error {
	return errors.New(strings.Join(strings.Fields(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "),
		"proto:")), " "))
}

// check returns the mistakes in our settings that can be found without opening anything.
func (o *own) check() error {
	var failed []error
	wrong := func(name, given string, known ...string) {
		failed = append(failed, fmt.Errorf("%s: %q is not known: write %s", name, given, strings.Join(known, ", ")))
	}
	oneOf := func(name, given string, known ...string) {
		for _, k := range known {
			if given == "" || given == k {
				return
			}
		}
		wrong(name, given, known...)
	}
	if o.Rules == "" {
		failed = append(failed, errors.New("rules: set the directory of rule files"))
	}
	oneOf("admission", o.Admission, "independent", "all_or_nothing")
	oneOf("on_error", o.OnError, "error", "allow", "deny", "local")
	oneOf("redis_key_format", o.KeyFormat, "ratelimitd", "lyft")
	for _, family := range o.Headers {
		oneOf("response_headers", family, "ratelimit", "x-ratelimit", "ietf", "retry-after")
	}
	if o.URL == "" {
		if o.Overrides == overridesInRedis {
			failed = append(failed, errors.New("overrides: redis needs redis_url"))
		}
		memory := storeSettings{MaxCounters: o.MaxCounters, DenialBytes: o.DenialBytes}
		if o.storeSettings != memory {
			failed = append(failed, errors.New("settings of Redis have no effect without redis_url"))
		}
	}
	for name, n := range map[string]float64{
		"memory_max_counters": o.MaxCounters, "local_cache_size_in_bytes": o.DenialBytes, "redis_pool_size": o.Pool,
		"gomaxprocs": float64(o.Processors),
	} {
		if n < 0 || n != float64(int64(n)) {
			failed = append(failed, fmt.Errorf("%s: %v is not a whole number from 0", name, n))
		}
	}
	return errors.Join(failed...)
}

const overridesInRedis = "redis" // a value of overrides

// unsupported are the fields of Envoy's filter that a module cannot obey, and why.
var unsupported = map[string]string{
	"rate_limit_service": "the module decides itself; remove it",
	"filter_enabled": "a module cannot draw by runtime keys; use shadow_mode, or the " +
		"filter's disabled",
	"filter_enforced": "a module cannot draw by runtime keys; use shadow_mode, or the " +
		"filter's disabled",
	"failure_mode_deny_percent": "a module cannot draw by runtime keys; use failure_mode_deny, or on_error " +
		"in the rules",
	"rate_limited_as_resource_exhausted": "Envoy chooses the gRPC status of a module's replies",
	"vh_rate_limits": "a module cannot read the rate_limits of virtual hosts and routes; write " +
		"rate_limits here",
	"override_option": "a module cannot read the rate_limits of virtual hosts and routes; write rate_limits here",
}

// checkSupported returns an error for each field that is set and not obeyed.
func checkSupported(m proto.Message) error {
	var failed []error
	for _, name := range sorted(unsupported) {
		field := m.ProtoReflect().Descriptor().Fields().ByTextName(name)
		if field != nil && m.ProtoReflect().Has(field) {
			failed = append(failed, fmt.Errorf("%s is not supported: %s", name, unsupported[name]))
		}
	}
	return errors.Join(failed...)
}

// checkFilter returns the mistakes in the fields of Envoy's filter.
func checkFilter(f *ratelimitv3.RateLimit) error {
	if err := checkSupported(f); err != nil {
		return err
	}
	checked := proto.Clone(f).(*ratelimitv3.RateLimit)
	checked.RateLimitService = &ratelimitconfigv3.RateLimitServiceConfig{ // required there
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "none"},
		}},
	}
	return checked.ValidateAll()
}

// ReadRoute reads the configuration of a route: a RateLimitPerRoute of Envoy's filter.
func ReadRoute(config []byte) (*Route, error) {
	m := new(ratelimitv3.RateLimitPerRoute)
	if len(bytes.TrimSpace(config)) > 0 {
		if err := protojson.Unmarshal(config, m); err != nil {
			return nil, plain(err)
		}
	}
	if err := errors.Join(checkSupported(m), m.ValidateAll()); err != nil {
		return nil, err
	}
	policies, err := compile(m.GetRateLimits())
	return &Route{domain: m.GetDomain(), policies: policies}, err
}

// sorted returns the keys of a map in order, so that messages are the same each time.
func sorted(of map[string]string) []string { return slices.Sorted(maps.Keys(of)) }
