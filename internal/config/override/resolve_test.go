package override

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const resolveRules = `domain: api
descriptors:
  - key: tenant
    overridable: true
    rate_limit: {name: per_tenant, unit: minute, requests_per_unit: 600}
    descriptors:
      - key: path
        value: /v1/*
        overridable: {max: 10000}
        rate_limits:
          - {name: minutely, unit: minute, requests_per_unit: 60}
          - {name: hourly, unit: hour, requests_per_unit: 1000, algorithm: token_bucket, burst: 20}
  - key: user
    value: root
    rate_limit: {name: users, unit: second, requests_per_unit: 1}
  - key: user
    overridable: true
    rate_limit: {name: users, unit: second, requests_per_unit: 2, algorithm: leaky_bucket}
  - key: client
    overridable: true
    rate_limits: [{name: only, unit: second, requests_per_unit: 2}]
`

func resolveTree(t *testing.T) *descriptor.Tree {
	t.Helper()
	tree, errs := config.Compile([]config.File{{Name: "api.yaml", Data: []byte(resolveRules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return tree
}

func resolvable(t *testing.T, rule, limit, of string, n Numbers) *Override {
	t.Helper()
	e, err := entries.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	return &Override{Identity: Identity{Domain: "api", Rule: rule, Limit: limit, Entries: e}, Numbers: n}
}

func TestResolve(t *testing.T) {
	tree := resolveTree(t)
	five, half, blocked := Numbers{Kind: Replace, Requests: 5}, Numbers{Kind: Scale, Requests: One / 2}, Numbers{Kind: Blocked}
	const both = "tenant=acme,path=/v1/x"
	for _, test := range []struct {
		rule, limit, entries string
		numbers              Numbers
		path, resolved       string
	}{
		{"api.tenant", "", "tenant=acme", five, "api.tenant", ""},
		{"tenant", "", "tenant=acme", five, "api.tenant", ""},
		{"per_tenant", "", "tenant=acme", five, "api.tenant", ""},
		{"per_tenant", "per_tenant", "tenant=acme", five, "api.tenant", ""},
		{"api.client", "only", "client=c", five, "api.client", ""},
		{"only", "", "client=c", five, "api.client", ""},
		{"users", "", "user=ann", five, "api.user", ""}, // the entries select the rule
		{"tenant.path_/v1/*", "hourly", both, five, "api.tenant.path_/v1/*", "hourly"},
		{"hourly", "", both, five, "api.tenant.path_/v1/*", "hourly"},
		{"hourly", "hourly", both, five, "api.tenant.path_/v1/*", "hourly"},
		{"tenant.path_/v1/*", "", both, half, "api.tenant.path_/v1/*", ""},
		{"tenant.path_/v1/*", "", both, blocked, "api.tenant.path_/v1/*", ""},
		{"hourly", "", both, Numbers{Kind: Replace, Requests: 10000, Burst: 10000}, "api.tenant.path_/v1/*", "hourly"},
		{"tenant", "", "tenant=acme", Numbers{Kind: Unlimited}, "api.tenant", ""},
	} {
		o := resolvable(t, test.rule, test.limit, test.entries, test.numbers)
		if err := Resolve(tree, o); err != nil || o.Rule != test.path || o.Limit != test.resolved || o.Numbers != test.numbers {
			t.Errorf("%s %s: %+v %v", test.rule, test.limit, o, err)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	tree := resolveTree(t)
	blocked := Numbers{Kind: Blocked}
	const both, path = "tenant=acme,path=/v1/x", "tenant.path_/v1/*"
	for _, test := range []struct {
		rule, limit, entries string
		numbers              Numbers
		want                 string
	}{
		{"api.tenat", "", "tenants=acme", blocked, "rule: there is no \"api.tenat\" in domain `api`: did you mean `api.tenant`?"},
		{"api.tenat", "", "tenant=acme", blocked, "rule: there is no \"api.tenat\" in domain `api`: the entries match `api.tenant`"},
		{"something_else", "", "nothing=acme", blocked, "rule: there is no \"something_else\" in domain `api`: write `api.client`, `api.tenant`, "},
		{"api.tenant", "", "tenat=acme", blocked, "entries: \"tenat=acme\" match no rule: `api.tenant` takes entries like `tenant=...`"},
		{path, "", "tenant=acme,path=/v2", blocked, "entries: \"tenant=acme,path=/v2\" match no rule: `api.tenant.path_/v1/*` takes entries like `tenant=...,path=/v1/*`"},
		{"api.tenant", "", both, blocked, "entries: \"tenant=acme,path=/v1/x\" match the rule `api.tenant.path_/v1/*`, not `api.tenant`: write that rule, or entries like `tenant=...`"},
		{"users", "", "usr=ann", blocked, "rule: 2 rules are named \"users\", and the entries match none: write a path, `api.user_root` or `api.user`"},
		{"users", "", "user=root", blocked, "rule: api.user_root allows no overrides: write `overridable: true` next to its `rate_limit` (api.yaml:"},
		{path, "", both, Numbers{Kind: Replace, Requests: 5}, "limit: the rule `api.tenant.path_/v1/*` has several: write which one gets these numbers, `minutely` or `hourly` (--limit-name of `ratelimitd override set`)"},
		{path, "hourli", both, blocked, "limit: the rule `api.tenant.path_/v1/*` has no \"hourli\": did you mean `hourly`?"},
		{"hourly", "minutely", both, blocked, "limit: \"hourly\" and \"minutely\" are two limits of the rule"},
		{"tenant", "hourly", "tenant=acme", blocked, "limit: the rule `api.tenant` has one limit: leave out \"hourly\""},
		{"hourly", "", both, Numbers{Kind: Replace, Requests: 10001}, "requests_per_unit: overrides of the rule `api.tenant.path_/v1/*` are bounded: write at most 10000"},
		{"hourly", "", both, Numbers{Kind: Replace, Requests: 1, Burst: 10001}, "burst: overrides of the rule `api.tenant.path_/v1/*` are bounded: write at most 10000"},
		{"hourly", "", both, Numbers{Kind: Scale, Requests: 11 * One}, "factor: 11 makes 11000 of 1000, and overrides of the rule `api.tenant.path_/v1/*` are bounded by 10000"},
		{"hourly", "", both, Numbers{Kind: Unlimited}, "unlimited: overrides of the rule `api.tenant.path_/v1/*` are bounded: write `requests_per_unit` of at most 10000"},
		{"tenant", "", "tenant=acme", Numbers{Kind: Replace, Requests: 1, Burst: 5}, "burst: a limit with the algorithm `fixed_window` has none: leave it out"},
		{"hourly", "", both, Numbers{Kind: Replace}, "with these numbers the rule `api.tenant.path_/v1/*` cannot be counted: requests_per_unit: "},
		{"tenant", "", "tenant=acme", Numbers{}, "exactly one of requests_per_unit, factor, unlimited and blocked is needed"},
	} {
		o := resolvable(t, test.rule, test.limit, test.entries, test.numbers)
		if err := Resolve(tree, o); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s %s\ngot  %v\nwant %s", test.rule, test.limit, err, test.want)
		}
	}
	o := resolvable(t, "tenant", "", "tenant=acme", blocked)
	o.Domain = "ap"
	if err := Resolve(tree, o); err == nil || err.Error() != "domain: there is no \"ap\": did you mean `api`?" {
		t.Error(err)
	}
}

// An override is for the grouped value. A file has to name it, because the service reads it without rules.
func TestResolveGroupedValues(t *testing.T) {
	tree, errs := config.Compile([]config.File{{Name: "api.yaml", Data: []byte(`domain: api
descriptors:
  - key: tenant
    fold_case: true
    overridable: true
    rate_limit: {unit: minute, requests_per_unit: 600}
    descriptors:
      - {key: ip, group: ipv6/64, overridable: true, rate_limit: {unit: minute, requests_per_unit: 60}}
`)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, test := range []struct{ rule, sent, counts string }{
		{"api.tenant", "tenant=ACME", "tenant=acme"},
		{"api.tenant", "tenant=acme", "tenant=acme"},
		{"api.tenant.ip", "tenant=Acme,ip=2001:db8::7", "tenant=acme,ip=2001:db8::"},
		{"api.tenant.ip", "tenant=acme,ip=::ffff:10.0.0.7", "tenant=acme,ip=10.0.0.7"},
	} {
		o := resolvable(t, test.rule, "", test.sent, Numbers{Kind: Blocked})
		sent := o.Entries
		placed := []Placed{{Override: *o}}
		if err := Resolve(tree, o); err != nil || entries.Format(o.Entries) != test.counts || entries.Format(sent) != test.sent {
			t.Errorf("%s: %+v, error %v", test.sent, o, err)
		}
		good, failed := ResolveAll(tree, placed)
		want := "entries: a file needs the values that count: write \"" + test.counts + "\""
		if same := test.sent == test.counts; same != (len(good) == 1 && failed == nil) || !same && (len(failed) != 1 || failed[0].Msg != want) {
			t.Errorf("%s in a file: %v, %v", test.sent, good, failed)
		}
	}
}
