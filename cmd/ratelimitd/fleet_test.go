package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Every process of a Redis lists all processes of that Redis: running ones, one with other rules, one that was stopped
// and one that was killed.
func TestFleet(t *testing.T) {
	r := redistest.Start(t)
	admin := r.Client(t)
	env := map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "RATELIMITD_OVERRIDES": "redis", "CACHE_KEY_PREFIX": "p:"}
	rules := rulesOf(t, usageRules)
	a, b, c := startProcess(t, env, "--rules", rules), startProcess(t, env, "--rules", rules), startProcess(t, env, "--rules", rules)
	other := startProcess(t, env, "--rules", rulesOf(t, strings.ReplaceAll(usageRules, "5", "6")))

	list := func(p *servicetest.Process) (*adminv1.FleetServiceListResponse, error) {
		code, out, stderr := asks(t, "fleet", "-s", p.Debug, "--json")
		f := new(adminv1.FleetServiceListResponse)
		if err := protojson.Unmarshal([]byte(out), f); code != 0 || stderr != "" || err != nil {
			return nil, fmt.Errorf("%d %w: %s%s", code, err, out, stderr)
		}
		return f, nil
	}
	// states counts the processes by their state in the list, such as "live" and "live, other rules".
	states := func(f *adminv1.FleetServiceListResponse) string {
		count := make(map[string]int)
		for _, p := range f.GetReplicas() {
			text := strings.ToLower(strings.TrimPrefix(p.GetState().String(), "REPLICA_STATE_"))
			if p.GetRulesDiffer() {
				text += ", other rules"
			}
			if p.GetOverridesDiffer() {
				text += ", other overrides"
			}
			count[text]++
		}
		return fmt.Sprint(count)
	}
	await := func(p *servicetest.Process, want string) {
		t.Helper()
		redistest.Eventually(t, want, func(context.Context) error {
			f, err := list(p)
			if err == nil && states(f) != want {
				err = fmt.Errorf("%s", states(f))
			}
			return err
		})
	}
	await(b, "map[live:3 live, other rules:1]")

	// The status that a process reports.
	for i := range 20 {
		if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, a.GRPC)).ShouldRateLimit(t.Context(), ask("api", "tenant", fmt.Sprint(i%2))); err != nil {
			t.Fatal(err)
		}
	}
	_, checksum := get(t, "http://"+a.Debug+"/rlconfig")
	redistest.Eventually(t, "what a process says of itself", func(context.Context) error {
		f, err := list(a)
		if err != nil {
			return err
		}
		if !f.GetShared() || f.GetError() != "" || f.GetReadAt() == nil || f.GetMore()+f.GetUnreadable() != 0 || len(f.GetReplicas()) != 4 || !f.GetReplicas()[0].RulesDiffer {
			return fmt.Errorf("%+v", f)
		}
		self := f.GetReplicas()[1]
		for _, p := range f.GetReplicas() {
			if p.GetId() == f.GetThisReplica() {
				self = p
			}
		}
		switch o := self.GetOverrides(); {
		case self.GetRules().GetCount() != 3 || self.GetRules().GetFiles() != 1 || time.Since(self.GetRules().GetSince().AsTime()) > time.Hour || !strings.Contains(checksum, fmt.Sprint(self.GetRules().GetChecksum())):
			return fmt.Errorf("rules %+v", self.GetRules())
		case o == nil || o.GetSource() != "redis" || o.GetError() != "":
			return fmt.Errorf("overrides %+v", o)
		case len(self.GetRedis()) != 1 || self.GetRedis()[0].GetName() != "redis" || self.GetRedis()[0].GetConnections() == 0 || len(self.GetRedis()[0].GetOpenBreakers()) > 0:
			return fmt.Errorf("redis %+v", self.GetRedis())
		case len(self.GetCaches()) != 1 || self.GetCaches()[0].GetName() != "leases", self.GetVersion() != thisBuild().Version, time.Since(self.GetStarted().AsTime()) > time.Hour:
			return fmt.Errorf("%+v", self)
		}
		return nil
	})
	if said, err := admin.Keys(t.Context(), "p:{fleet}:*").Result(); err != nil || len(said) != 4 {
		t.Errorf("%q, %v", said, err)
	}
	redistest.Eventually(t, "the list of all", func(context.Context) error {
		code, out, stderr := asks(t, "fleet", "-s", a.Debug)
		if code != 0 || strings.Count(out, "(asked)") != 1 || strings.Count(out, "(differs)") != 1 || !strings.Contains(out, "4 live, 0 stopped, 0 gone\n1 with other rules than most\n") {
			return fmt.Errorf("%d\n%s%s", code, out, stderr)
		}
		return nil
	})

	// One ends, and one is killed.
	c.Stop(t)
	b.Kill(t)
	// two versions of the rules, one process each: most processes have neither
	await(a, "map[gone:1 live, other rules:2 stopped:1]")

	// While Redis is unreachable, the list shows the last known state.
	r.Kill(t)
	redistest.Eventually(t, "Redis is unreachable", func(context.Context) error {
		f, err := list(a)
		if err == nil && (f.GetError() == "" || len(f.GetReplicas()) != 4 || f.GetReadAt() == nil) {
			err = fmt.Errorf("%+v", f)
		}
		return err
	})
	redistest.Eventually(t, "the list without Redis", func(context.Context) error {
		if code, out, stderr := asks(t, "fleet", "-s", a.Debug); code != 0 || !strings.Contains(out, "the others as they were ") {
			return fmt.Errorf("%d\n%s%s", code, out, stderr)
		}
		return nil
	})
	r.Restart(t)
	await(other, "map[live, other rules:2]")
}

// A process that counts in memory lists only itself.
func TestFleetOfOne(t *testing.T) {
	p := startProcess(t, nil, "--rules", rulesOf(t, usageRules))
	code, out, stderr := asks(t, "fleet", "-s", p.Debug)
	if code != 0 || stderr != "" || !strings.Contains(out, "1 live, 0 stopped, 0 gone\nthis replica counts in its own memory, and knows no others\n") {
		t.Errorf("%d\n%s%s", code, out, stderr)
	}
}
