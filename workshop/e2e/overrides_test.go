package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// overrideToken is the operators' token, of at least the minimum length.
const overrideToken = "e2e-token-of-an-operator-with-32-bytes"

// Two replicas share a Redis, and load arrives through a real Envoy. An override is set, raised, removed, expires, and
// survives a replica that is killed. Every change is active in both replicas within a second. Before and after each,
// exactly the limit passes, and no request fails.
func TestOverridesUnderLoad(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(overrideToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startFleet(t, `
domain: e2e
admission: all_or_nothing
descriptors:
  - {key: user, overridable: true, rate_limit: {unit: day, requests_per_unit: 20}}
`, "RATELIMITD_OVERRIDES=redis", "RATELIMITD_ADMIN_TOKEN_FILE="+tokens)
	e := startEnvoy(t, bootstrap{Clusters: []cluster{upstreamCluster(f.upstream), rls(f.services...).with(often)}, Listeners: []listener{byUser("")}})
	e.awaitHealthy(t, "rls", 2)

	// passes sends requests from several clients at the same time and checks how many pass; the others must be denied.
	passes := func(user string, sent, want int) {
		t.Helper()
		var passed, denied atomic.Int64
		var clients sync.WaitGroup
		for client := range 4 {
			clients.Go(func() {
				for n := client; n < sent; n += 4 {
					switch e.get(t, "main", "/", "x-user", user).code {
					case http.StatusOK:
						passed.Add(1)
					case http.StatusTooManyRequests:
						denied.Add(1)
					}
				}
			})
		}
		clients.Wait()
		if p, r := int(passed.Load()), int(denied.Load()); p != want || p+r != sent {
			t.Errorf("%s: of %d requests %d passed and %d were denied; want %d and %d", user, sent, p, r, want, sent-want)
		}
	}
	override := func(user, numbers string) string {
		return `{"override": {"domain": "e2e", "rule": "user", "entries": [{"key": "user", "value": "` + user + `"}]` + numbers + `}}`
	}
	// inForce waits until these processes use a version that was written at that time.
	inForce := func(what string, start time.Time, version int64, services ...*service) {
		t.Helper()
		for _, s := range services {
			await(t, s.name+" to use the override", func(ctx context.Context) error {
				m, err := s.readMetrics(ctx)
				if at := int64(m["ratelimitd_overrides_version"]); err == nil && at < version {
					err = fmt.Errorf("it is at version %d, not %d", at, version)
				}
				return err
			})
		}
		took := time.Since(start).Round(time.Millisecond)
		if t.Logf("%s is in force after %v", what, took); took > time.Second {
			t.Errorf("%s is in force after %v, want at most a second", what, took)
		}
	}
	// change writes through one process and waits until both use it.
	change := func(through int, method, write string) {
		t.Helper()
		start := time.Now()
		version := operate(t, f.services[through], method, `{"writes": [`+write+`]}`)
		inForce(fmt.Sprintf("%s through process %d", method, through+1), start, version, f.services...)
	}

	passes("ada", 40, 20)
	change(0, "Set", override("ada", `, "requestsPerUnit": 50, "reason": "a campaign"`))
	passes("ada", 60, 30)
	passes("bob", 30, 20)
	change(1, "Set", override("ada", `, "requestsPerUnit": 60`))
	passes("ada", 30, 10)
	change(0, "Set", override("ada", `, "unlimited": true`))
	passes("ada", 30, 30)
	change(1, "Remove", override("ada", ""))
	passes("ada", 20, 0) // hits used before the limit was lifted stay used

	until := time.Now().Add(4 * time.Second).Truncate(time.Second)
	change(0, "Set", override("eve", `, "blocked": true, "expiresAt": "`+until.UTC().Format(time.RFC3339)+`"`))
	if time.Until(until) > 2*time.Second {
		passes("eve", 8, 0)
	} else {
		t.Log("the machine is too busy to send requests before the block ends")
	}
	await(t, "the override to expire", func(context.Context) error {
		if time.Until(until) > -100*time.Millisecond {
			return errors.New("it is too early")
		}
		return nil
	})
	passes("eve", 30, 20)
	f.agree(t, []*envoy{e}, "main")

	// A process is killed right after it has acknowledged a write.
	start := time.Now()
	version := operate(t, f.services[0], "Set", `{"writes": [`+override("joe", `, "requestsPerUnit": 3`)+`]}`)
	f.services[0].Kill(t)
	inForce("the last write of a killed process", start, version, f.services[1])
	e.awaitHealthy(t, "rls", 1)
	passes("joe", 8, 3)
}

// operate calls a method of OverrideService and returns the version that the call wrote.
func operate(t *testing.T, s *service, method, body string) (version int64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.Debug+"/ratelimitd.admin.v1.OverrideService/"+method, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+overrideToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	var answer struct {
		Changes []struct {
			Before, After struct{ Version string }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || res.StatusCode != http.StatusOK || len(answer.Changes) != 1 {
		t.Fatalf("%s: %v, %s: %s", method, err, res.Status, text)
	}
	if v := answer.Changes[0].After.Version; v != "" {
		version, err = strconv.ParseInt(v, 10, 64)
	} else if version, err = strconv.ParseInt(answer.Changes[0].Before.Version, 10, 64); err == nil {
		version++ // a removal is at least the next version
	}
	if err != nil {
		t.Fatalf("%s: no version: %s", method, text)
	}
	return version
}
