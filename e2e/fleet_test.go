package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// fleet is what most scenarios run on: two ratelimitd that count in one Redis, and something to protect.
type fleet struct {
	redis    *redistest.Server // nil if it is more than one
	services []*service
	upstream *upstream
	rules    string // the folder of rule files, which both read
}

// startFleet starts one with a rule file, and this environment besides.
func startFleet(t *testing.T, rule string, env ...string) *fleet {
	t.Helper()
	needsEnvoy(t)
	redis := redistest.Start(t)
	f := startFleetWith(t, rule, append([]string{"REDIS_URL=" + redis.Addr}, env...)...)
	f.redis = redis
	return f
}

// startFleetWith starts one whose Redis the environment names.
func startFleetWith(t *testing.T, rule string, env ...string) *fleet {
	t.Helper()
	f := &fleet{upstream: startUpstream(t), rules: rules(t, rule)}
	for i := range 2 {
		f.services = append(f.services, startService(t, fmt.Sprintf("ratelimitd %d", i+1), f.rules, env...))
	}
	t.Cleanup(func() { // both at once: each may take its time
		for _, s := range f.services {
			if s.running() {
				s.signal(t, syscall.SIGTERM)
			}
		}
	})
	return f
}

// clusters are what Envoy needs to know of it.
func (f *fleet) clusters() []cluster {
	return []cluster{upstreamCluster(f.upstream), rls(f.services...)}
}

// agree compares Envoy's counts with those of the services, which must have had no other callers: as many calls passed,
// as many were refused and as many failed on both sides.
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

// counted is how many hits the rules of perUser(limit) have counted for so many users, in the eyes of the first service. It
// is asked over HTTP for what is left, with no hits: its own counts of decisions grow by that.
func (f *fleet) counted(t *testing.T, limit, users int) int {
	t.Helper()
	sum := 0
	for user := range users {
		body := fmt.Sprintf(`{"domain": "e2e", "descriptors": [{"entries": [{"key": "user", "value": "%d"}], "hitsAddend": "0"}]}`, user)
		res, err := http.Post("http://"+f.services[0].http+"/json", "application/json", strings.NewReader(body))
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
