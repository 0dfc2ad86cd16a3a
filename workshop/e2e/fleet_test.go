package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// fleet is the setup of most scenarios: two ratelimitd that count in one Redis, and an upstream to protect.
type fleet struct {
	redis    *redistest.Server // nil if there is more than one
	services []*service
	upstream *upstream
	rules    string // the directory of rule files, which both read
}

// startFleet starts a fleet with a rule file and more environment variables.
func startFleet(t *testing.T, rule string, env ...string) *fleet {
	t.Helper()
	needsEnvoy(t)
	redis := redistest.Start(t)
	f := startFleetWith(t, rule, append([]string{"REDIS_URL=" + redis.Addr}, env...)...)
	f.redis = redis
	return f
}

// startFleetWith starts a fleet with the Redis that the environment names.
func startFleetWith(t *testing.T, rule string, env ...string) *fleet {
	t.Helper()
	f := &fleet{upstream: startUpstream(t), rules: rules(t, rule)}
	for i := range 2 {
		f.services = append(f.services, startService(t, fmt.Sprintf("ratelimitd %d", i+1), f.rules, env...))
	}
	t.Cleanup(func() { // signals all before it waits for any: each may take a while to stop
		for _, s := range f.services {
			if s.Running() {
				s.Signal(t, syscall.SIGTERM)
			}
		}
	})
	return f
}

// clusters are the clusters that Envoy needs for the fleet.
func (f *fleet) clusters() []cluster {
	return []cluster{upstreamCluster(f.upstream), rls(f.services...)}
}

// agree checks that Envoy and the services counted the same numbers of passed, denied and failed calls. The services
// must not have had other clients.
func (f *fleet) agree(t *testing.T, envoys []*envoy, listeners ...string) {
	t.Helper()
	var theirs verdicts
	for _, e := range envoys {
		for _, l := range listeners {
			theirs = theirs.plus(e.verdicts(t, l))
		}
	}
	ours := answered(t, f.services...)
	if (answers{theirs.OK, theirs.OverLimit, theirs.Error}) != ours {
		t.Errorf("Envoy counted %+v, ratelimitd %+v", theirs, ours)
	}
	if theirs.sum() == 0 {
		t.Error("Envoy counted nothing")
	}
}

// counted returns how many hits the rules of perUser(limit) have counted for this number of users, as seen by the first
// service. It calls that service over HTTP with zero hits, which increases the service's own counts of decisions.
func (f *fleet) counted(t *testing.T, limit, users int) int {
	t.Helper()
	sum := 0
	for user := range users {
		body := fmt.Sprintf(`{"domain": "e2e", "descriptors": [{"entries": [{"key": "user", "value": "%d"}], "hitsAddend": "0"}]}`, user)
		res, err := http.Post("http://"+f.services[0].HTTP+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Statuses []struct {
				Remaining int `json:"limitRemaining"`
			} `json:"statuses"`
		}
		err = json.NewDecoder(res.Body).Decode(&answer)
		_ = res.Body.Close()
		if err != nil || len(answer.Statuses) != 1 {
			t.Fatalf("ask for user %d: %v, %s: %+v", user, err, res.Status, answer)
		}
		sum += limit - answer.Statuses[0].Remaining
	}
	return sum
}
