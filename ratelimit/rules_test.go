package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// plans are rules in code; plansInFile is a rule file that means the same.
var plans = ratelimit.Domain{Name: "api", AllOrNothing: true, Rules: []ratelimit.Rule{
	{Key: "plan", Value: "free", Condition: true, Rules: []ratelimit.Rule{{Key: "customer", Limits: []ratelimit.Limit{
		{Name: "burst", Requests: 2, Window: time.Hour, Algorithm: ratelimit.TokenBucket, Burst: 3},
		{Name: "daily", Requests: 5, Window: 24 * time.Hour},
	}}}},
	{Key: "model", Limit: ratelimit.PerDay(100), OnFailure: limits.OnFailureAllow, Reservations: true},
	{Key: "export", Shadow: true, Limit: ratelimit.Limit{Requests: 1, Window: 90 * time.Second, Algorithm: ratelimit.Concurrency}},
}}

const plansInFile = `
domain: api
admission: all_or_nothing
descriptors:
  - {key: plan, value: free, condition: true, descriptors: [{key: customer, rate_limits: [
      {name: burst, unit: hour, requests_per_unit: 2, algorithm: token_bucket, burst: 3}, {name: daily, unit: day, requests_per_unit: 5}]}]}
  - {key: model, rate_limit: {unit: day, requests_per_unit: 100}, on_error: allow, reservations: true}
  - {key: export, shadow_mode: true, rate_limit: {algorithm: concurrency, max_in_flight: 1, ttl: 1m30s}}
`

// A domain in code and a rule file with the same content share their counters.
func TestRulesInCodeAreRulesInFiles(t *testing.T) {
	r := redistest.Start(t)
	inCode := open(t, ratelimit.Options{Domains: []ratelimit.Domain{plans}, Store: redisstore.New(redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second}), Logger: quiet})
	inFile := open(t, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(t, plansInFile)), Store: redisstore.New(redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second}), Logger: quiet})
	for _, pairs := range [][]string{{"plan", "free", "customer", "a"}, {"model", "m"}, {"export", "x"}} {
		for i := range 6 {
			one, other := inCode, inFile
			if i%2 == 1 {
				one, other = inFile, inCode
			}
			_, err := one.Allow(t.Context(), "api", pairs...)
			if pairs[0] == "export" { // its place cannot be given back by Allow
				_, err = one.Reserve(t.Context(), limits.NewRequest("api", pairs...), ratelimit.ReserveOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			peek := limits.NewRequest("api", pairs...)
			peek.Amount.Peek = true
			a, errA := one.Decide(t.Context(), peek)
			b, errB := other.Decide(t.Context(), peek)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if x, y := a.Statuses[0], b.Statuses[0]; x.Remaining != y.Remaining || x.Limit != y.Limit || x.Rule != y.Rule || x.Limit == 0 {
				t.Errorf("after %d requests of %v: %+v and %+v", i+1, pairs, x, y)
			}
		}
	}
}

// A mistake in rules in code is an error of Open that names the place, as it does for a file.
func TestMistakesInCode(t *testing.T) {
	for want, rule := range map[string]ratelimit.Rule{
		`Rules[0].Limit.Burst: Burst cannot be used with FixedWindow: it is for TokenBucket or LeakyBucket`: {Key: "a", Limit: ratelimit.Limit{Requests: 1, Window: time.Second, Burst: 2}},
		`rule with key "a": the limit's Window is 1.5ms`:                                                    {Key: "a", Limit: ratelimit.Per(1, 1500*time.Microsecond)},
		`the limit's Window is 0s`:                                   {Key: "b", Rules: []ratelimit.Rule{{Key: "a", Limit: ratelimit.Limit{Requests: 1}}}},
		`the limit's Algorithm is 9`:                                 {Key: "a", Limits: []ratelimit.Limit{{Algorithm: 9}}},
		"Options.Domains[0]: Rules[0]: a rule without a Key: set it": {Limit: ratelimit.PerSecond(1)},
		// without a name
		"Rules[0].Rules[0].Limits[0]: a limit of Limits without a Name": {Key: "b", Rules: []ratelimit.Rule{{Key: "a", Limits: []ratelimit.Limit{ratelimit.PerSecond(1)}}}},
		"Rules[0].Limit.Requests: Requests must":                        {Key: "a", Limit: ratelimit.PerSecond(1 << 60)},
		"Rules[0].Limit.Window: Window must":                            {Key: "a", Limit: ratelimit.Limit{Requests: 1, Algorithm: ratelimit.Concurrency}},
	} {
		l, err := ratelimit.New("api", rule)
		if err == nil {
			t.Errorf("%+v is accepted, want an error with %s", rule, want)
			_ = l.Close()
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", rule, err, want)
		}
	}
	if _, err := ratelimit.Open(t.Context(), ratelimit.Options{Domains: []ratelimit.Domain{plans, plans}}); err == nil || !strings.Contains(err.Error(), `duplicate domain "api"`) {
		t.Errorf("one domain twice: %v", err)
	}
	for _, rules := range [][]ratelimit.Rule{nil, {{Key: "a"}}, {{Key: "a", Condition: true}}} {
		if _, err := ratelimit.New("api", rules...); err == nil || !strings.Contains(err.Error(), "limits nothing") {
			t.Errorf("%v: %v", rules, err)
		}
	}
	if _, err := ratelimit.New(""); err == nil {
		t.Error("a domain without a name and rules is accepted")
	}
}

// Rules of all three sources apply together. A file of the directory replaces a domain of embedded files, but not one
// in code.
func TestSources(t *testing.T) {
	dir := servicetest.RulesOf(t, "domain: dir\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1}}]\n",
		"domain: code\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 9}}]\n")
	l := open(t, ratelimit.Options{
		Domains: []ratelimit.Domain{{Name: "code", Rules: []ratelimit.Rule{{Key: "k", Limit: ratelimit.PerDay(2)}}}},
		Files: fstest.MapFS{
			"deep/limits.yml":      {Data: []byte("domain: embedded\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 3}}]\n")},
			"deep/limits_test.yml": {Data: []byte("cases: []\n")},
			"notes.txt":            {Data: []byte("domain: notes\n")},
		},
		Dir: rulefiles.Dir(dir), Logger: quiet,
	})
	limitOf := func(domain string) uint64 {
		d, err := l.Decide(t.Context(), limits.NewRequest(domain, "k", "v"))
		if err != nil {
			t.Fatal(err)
		}
		return d.Statuses[0].Limit
	}
	for domain, want := range map[string]uint64{"dir": 1, "code": 2, "embedded": 3, "notes": 0} {
		if got := limitOf(domain); got != want {
			t.Errorf("domain %s has the limit %d, want %d", domain, got, want)
		}
	}
	// Files of the directory change; the others stay.
	if err := os.WriteFile(filepath.Join(dir, "rules0.yaml"), []byte("domain: dir\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 7}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the new rules", func(context.Context) error {
		if limitOf("dir") != 7 {
			return errors.New("the old rules")
		}
		return nil
	})
	replacing := filepath.Join(dir, "replacing.yaml")
	if err := os.WriteFile(replacing, []byte("domain: embedded\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 30}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	embedded := func(want uint64) {
		redistest.Eventually(t, "the rules of the embedded domain", func(context.Context) error {
			if got := limitOf("embedded"); got != want {
				return fmt.Errorf("the limit is %d, want %d", got, want)
			}
			return nil
		})
	}
	embedded(30)
	if err := os.Remove(replacing); err != nil {
		t.Fatal(err)
	}
	embedded(3)
	if got := limitOf("code"); got != 2 {
		t.Errorf("after a reload the domain in code has the limit %d", got)
	}

	// With rules in code a program needs no rule file in the directory.
	open(t, ratelimit.Options{Domains: []ratelimit.Domain{plans}, Dir: rulefiles.Dir(t.TempDir()), Logger: quiet})
	for want, files := range map[string]fstest.MapFS{
		"there is no rule file":  {"limits_test.yaml": {}},
		"a.yaml:1:":              {"a.yaml": {Data: []byte("domain: [")}},
		"unknown key `per_unit`": {"a.yaml": {Data: []byte("domain: a\ndescriptors: [{key: k, rate_limit: {per_unit: 1}}]\n")}},
	} {
		if _, err := ratelimit.Open(t.Context(), ratelimit.Options{Files: files}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", files, err, want)
		}
	}
}

// A limiter with rules in code and counters in memory works in a bubble of testing/synctest, where the test controls
// the time.
func TestTimeIsTheTests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.New("api", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerDay(1)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		for day := range 3 {
			for request, want := range []bool{true, false} {
				if ok, err := l.Allow(t.Context(), "api", "customer", "ann"); ok != want || err != nil {
					t.Errorf("day %d, request %d: %t, %v", day, request, ok, err)
				}
			}
			<-time.After(24 * time.Hour)
		}
	})
}

// A key without a value is an error wherever pairs are given.
func TestUnpaired(t *testing.T) {
	l := open(t, ratelimit.Options{Domains: []ratelimit.Domain{plans}, Logger: quiet})
	_, allow := l.Allow(t.Context(), "api", "model")
	_, decide := l.Decide(t.Context(), limits.NewRequest("api", "plan", "free", "customer"))
	_, reserve := l.Reserve(t.Context(), limits.NewRequest("api", ""), ratelimit.ReserveOptions{})
	for name, err := range map[string]error{`"model"`: allow, `"customer"`: decide, `"(empty)"`: reserve} {
		if !errors.Is(err, limits.ErrInvalid) || !strings.Contains(err.Error(), "the key "+name+" has no value") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The library has no other regions to ask. It returns an error, instead of counting a limit of all regions in one
// process.
func TestRulesAcrossRegionsAreAnError(t *testing.T) {
	const across = "domain: api\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 10, regions: {home: eu}}}]\n"
	for name, o := range map[string]ratelimit.Options{
		"files":     {Files: fstest.MapFS{"api.yaml": {Data: []byte(across)}}, Logger: quiet},
		"directory": {Dir: rulefiles.Dir(servicetest.RulesOf(t, across)), Logger: quiet},
	} {
		if l, err := ratelimit.Open(t.Context(), o); err == nil || name == "files" && !strings.Contains(err.Error(), "`regions`") {
			t.Errorf("%s: the error is %v", name, err)
			_ = l.Close()
		}
	}
	regional := strings.Replace(across, "home: eu", "mode: regional", 1)
	open(t, ratelimit.Options{Files: fstest.MapFS{"api.yaml": {Data: []byte(regional)}}, Logger: quiet})
}
