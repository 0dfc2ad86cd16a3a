package e2e

import (
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// fleet is what most scenarios run on: two ratelimitd that count in one Redis, and something to protect.
type fleet struct {
	redis    *redistest.Server
	services []*service
	upstream *upstream
	rules    string // the folder of rule files, which both read
}

// startFleet starts one with a rule file, and this environment besides.
func startFleet(t *testing.T, rule string, env ...string) *fleet {
	t.Helper()
	needsEnvoy(t)
	f := &fleet{redis: redistest.Start(t), upstream: startUpstream(t), rules: rules(t, rule)}
	for i := range 2 {
		f.services = append(f.services, startService(t, fmt.Sprintf("ratelimitd %d", i+1), f.rules, append([]string{"REDIS_URL=" + f.redis.Addr}, env...)...))
	}
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
