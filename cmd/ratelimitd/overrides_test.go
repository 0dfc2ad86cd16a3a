package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

const overridableRules = "domain: d\ndescriptors:\n  - key: k\n    overridable: true\n    rate_limit: {unit: day, requests_per_unit: 5}\n"

// limitOf asks a process until the limit of a customer is as wanted. Asking counts a hit.
func limitOf(t *testing.T, p *servicetest.Process, value string, want uint32) {
	t.Helper()
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	redistest.Eventually(t, fmt.Sprintf("a limit of %d for %s", want, value), func(ctx context.Context) error {
		got, err := client.ShouldRateLimit(ctx, ask("d", "k", value))
		if err != nil {
			return err
		}
		if n := got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); n != want {
			return fmt.Errorf("it is %d", n)
		}
		return nil
	})
}

func editOf(value string, requests uint64) override.Edit {
	return override.Edit{Override: override.Override{
		Identity: override.Identity{Domain: "d", Rule: "d.k", Entries: []descriptor.Entry{{Key: "k", Value: value}}},
		Numbers:  override.Numbers{Kind: override.Replace, Requests: requests},
	}}
}

// Overrides in Redis reach the decisions of every process. One that starts without Redis has them from its copy.
func TestOverridesInRedis(t *testing.T) {
	r := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "copy.yaml")
	env := map[string]string{
		"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "CACHE_KEY_PREFIX": "blue:", "RATELIMITD_OVERRIDES": "redis", "RATELIMITD_ON_ERROR": "local",
		"RATELIMITD_OVERRIDES_COPY": file,
	}
	rules := rulesOf(t, overridableRules)
	a, b := startProcess(t, env, "--rules", rules), startProcess(t, map[string]string{"REDIS_URL": r.Addr, "CACHE_KEY_PREFIX": "blue:", "RATELIMITD_OVERRIDES": "redis", "REDIS_OP_TIMEOUT": "5s"}, "--rules", rules)
	limitOf(t, a, "x", 5)
	client, err := redisconn.Dial(redisconn.Options{URL: r.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	source := redissource.New(redissource.Options{Client: client, Prefix: "blue:", Log: slog.New(slog.DiscardHandler)})
	if _, err := source.Write(t.Context(), "ann", []override.Edit{editOf("x", 50)}); err != nil {
		t.Fatal(err)
	}
	limitOf(t, a, "x", 50)
	limitOf(t, b, "x", 50)
	limitOf(t, b, "y", 5)

	a.Stop(t) // it writes its copy
	r.Kill(t)
	limitOf(t, startProcess(t, env, "--rules", rules), "x", 50)
	delete(env, "RATELIMITD_OVERRIDES_COPY")
	limitOf(t, startProcess(t, env, "--rules", rules), "x", 5)
}

func TestOverridesNeedASource(t *testing.T) {
	if code, text := output(t, map[string]string{"RATELIMITD_OVERRIDES": "redis"}, "--rules", rulesOf(t, fiveADay)); code != 2 || !strings.Contains(text, "needs REDIS_URL") {
		t.Errorf("%d: %s", code, text)
	}
	i := begin(t, map[string]string{"RATELIMITD_OVERRIDES_COPY": "/tmp/none"}, "--rules", rulesOf(t, fiveADay))
	if i.err != nil || !strings.Contains(i.log.String(), "RATELIMITD_OVERRIDES_COPY has no effect") {
		t.Errorf("%v\n%s", i.err, i.log)
	}
}

// Overrides in a file reach decisions, also after a change of the file.
func TestOverridesInAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "overrides.yaml")
	put := func(requests int) {
		t.Helper()
		text := fmt.Sprintf("overrides:\n- {domain: d, rule: d.k, entries: k=x, requests_per_unit: %d}\n", requests)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(50)
	p := startProcess(t, nil, "--rules", rulesOf(t, overridableRules), "--overrides", file)
	got, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), ask("d", "k", "x"))
	if err != nil || got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() != 50 {
		t.Errorf("the first decision: %v %v", got, err)
	}
	put(70)
	limitOf(t, p, "x", 70)

	if code, text := output(t, nil, "--rules", rulesOf(t, overridableRules), "--overrides", rulesOf(t, fiveADay)); code != 2 || !strings.Contains(text, "is a directory") {
		t.Errorf("%d: %s", code, text)
	}
}
