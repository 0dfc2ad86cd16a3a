package filter

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// A setting that a module cannot obey, or that has no effect, is an error, which names the remedy. Nothing is connected
// for that.
func TestSettingsRejected(t *testing.T) {
	good := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]")
	bad := servicetest.RulesOf(t, "domain: d\ndescriptors: [{key: user, rate_limits: 1}]")
	const sourceCluster = `"rate_limits": [{"actions": [{"source_cluster": {}}]}]`
	header := func(fields string) string {
		return `"response_headers_to_add": [{"header": {"key": "a", ` + fields + `}]`
	}
	for _, c := range []struct{ settings, says string }{
		{`"redis_url": "127.0.0.1:1", "redis_op_timeout": "1s"`, ""},
		{`"memory_max_counters": 3e+06`, ""},
		{sourceCluster + `, "source_cluster": "here"`, ""},
		{sourceCluster, "rate_limits[0]: the action source_cluster needs the setting source_cluster"},
		{`"domain": ""`, "Domain"},
		{`"denial": 1`, `unknown field "denial"`},
		{`"stage": 11`, "Stage"},
		{`"rules": ""`, "rules: set the directory"},
		{fmt.Sprintf(`"rules": %q`, t.TempDir()), "has no rule file"},
		{fmt.Sprintf(`"rules": %q`, bad), "rules0.yaml:2:"},
		{`"on_error": "deni"`, `on_error: "deni" is not known: write error, allow, deny, local`},
		{`"admission": "all"`, `admission: "all" is not known`},
		{`"redis_url": "r", "redis_key_format": "x"`, `redis_key_format: "x" is not known`},
		{`"response_headers": ["ietf", "x"]`, `response_headers: "x" is not known`},
		{`"memory_max_counters": -1`, "memory_max_counters: -1 is not a whole number"},
		{`"gomaxprocs": 1.5`, "gomaxprocs"},
		{`"redis_url": "r", "redis_pool_size": 0.5`, "redis_pool_size: 0.5 is not a whole number"},
		{`"redis_url": "r", "redis_timeout": "-1s"`, "-1s is negative"},
		{`"redis_url": "r", "redis_op_timeout": "-1s"`, "-1s is negative"},
		{`"redis_url": "a,b", "redis_type": "CLUSTERS"`, "CLUSTERS"},
		{`"redis_tls": true`, "settings of Redis have no effect without redis_url"},
		{`"overrides": "redis"`, "overrides: redis needs redis_url"},
		{`"overrides": "/none/overrides.yaml"`, "overrides: "},
		{`"rate_limit_service": {}`, "rate_limit_service is not supported: the module decides itself"},
		{`"filter_enabled": {}`, "filter_enabled is not supported"},
		{`"filter_enforced": {}`, "filter_enforced is not supported"},
		{`"failure_mode_deny_percent": {}`, "failure_mode_deny_percent is not supported"},
		{`"rate_limited_as_resource_exhausted": true`, "rate_limited_as_resource_exhausted is not supported"},
		{header(`"value": "%REQ(x)%"}`), "response_headers_to_add[0]: the value \"%REQ(x)%\" is a format"},
		{header(`"raw_value": "eA=="}`), "raw_value and append are not supported"},
		{header(`"value": "b"}, "append": false`), "raw_value and append are not supported"},
		{header(`"value": "100%%"}`), ""},
	} {
		text := fmt.Sprintf(`{"domain": "d", "rules": %q, %s}`, good, c.settings) // the last one of two values counts
		_, err := Open([]byte(text), testHost{validating: true}, slog.New(slog.DiscardHandler))
		if said := fmt.Sprint(err); (c.says == "") != (err == nil) || !strings.Contains(said, c.says) {
			t.Errorf("%s: want %q, got %s", c.settings, c.says, said)
		}
	}
	if _, _, err := read([]byte("text")); err == nil || !strings.Contains(err.Error(), "must be a google.protobuf.Struct") {
		t.Errorf("no object: %v", err)
	}
}

// The settings of a route are checked like those of the filter.
func TestRoutesRejected(t *testing.T) {
	for _, c := range []struct{ settings, says string }{
		{``, ""},
		{`{"domain": "d", "rate_limits": [{"actions": [{"remote_address": {}}]}]}`, ""},
		{`{"rules": "r"}`, `unknown field "rules"`},
		{`{"vh_rate_limits": "IGNORE"}`, "vh_rate_limits is not supported: a module cannot read"},
		{`{"override_option": "OVERRIDE_POLICY"}`, "override_option is not supported"},
		{`{"rate_limits": [{"disable_key": "k", "actions": [{"remote_address": {}}]}]}`, "rate_limits[0]: disable_key is not supported"},
		{`{"rate_limits": [{}]}`, "Actions"},
	} {
		_, err := ReadRoute([]byte(c.settings))
		if said := fmt.Sprint(err); (c.says == "") != (err == nil) || !strings.Contains(said, c.says) {
			t.Errorf("%s: want %q, got %s", c.settings, c.says, said)
		}
	}
}
