package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Under load through two Envoys, rules change, a ratelimitd is updated and Redis fails over. No request is lost: each
// is answered or denied. A request without a decision is a request that Envoy's failure mode let through.
func TestEverythingAtOnce(t *testing.T) { everything(t, 10*time.Second) }

// The same for a minute, with each change several times.
func TestSoakEverythingAtOnce(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN: it takes a minute; make soak runs it")
	}
	everything(t, time.Minute)
}

func everything(t *testing.T, least time.Duration) {
	needsEnvoy(t)
	redis := redistest.StartWatched(t, redistest.Setup{})
	const users = 20
	limit := 10
	// Denied hits do not count, so a higher limit lets more requests pass.
	rule := func() string { return strings.Replace(perUser(limit), "{unit", "{count_denied: false, unit", 1) }
	f := startFleetWith(t, rule(), "REDIS_TYPE=SENTINEL", "REDIS_URL="+redis.URL(), "REDIS_OP_TIMEOUT=1s", "RATELIMITD_DRAIN_DELAY=2s")
	var envoys []*envoy
	for i := range 2 {
		envoys = append(envoys, startEnvoy(t, bootstrap{
			Name:      fmt.Sprintf("envoy %d", i+1),
			Clusters:  []cluster{upstreamCluster(f.upstream), rls(f.services...).with(often)},
			Listeners: []listener{byUser("failure_mode_deny: false")},
		}))
	}
	counted := func() (sum verdicts) {
		for _, e := range envoys {
			sum = sum.plus(e.verdicts(t, "main"))
		}
		return sum
	}
	for _, e := range envoys {
		e.awaitHealthy(t, "rls", 2)
	}
	start := time.Now()
	l := startLoad(t, "main", "/", users, envoys...)
	// judged waits until the service decides every request again.
	judged := func() {
		t.Helper()
		await(t, "all requests to be judged", func(context.Context) error {
			before := counted().Error
			l.next(t, 50)
			if more := counted().Error - before; more != 0 {
				return fmt.Errorf("%d were not", more)
			}
			return nil
		})
	}
	judged()
	const room = 15 * time.Second // time for one more round
	for round := 0; round == 0 || time.Since(start) < least-room; round++ {
		before := counted().Error
		limit += 10
		f.reload(t, rule())
		judged()
		if away := counted().Error - before; away != 0 {
			t.Errorf("%d requests were not judged while rules changed", away)
		}

		before = counted().Error
		f.services[round%2].restart(t)
		for _, e := range envoys {
			e.awaitHealthy(t, "rls", 2)
		}
		judged()
		if away := counted().Error - before; away != 0 {
			t.Errorf("%d requests were not judged while a ratelimitd was restarted", away)
		}

		old := redis.Primary(t)
		killed := time.Now()
		before = counted().Error
		old.Kill(t)
		redis.AwaitOther(t, old)
		promoted := time.Since(killed)
		judged()
		t.Logf("Redis killed: another primary after %v, all judged again after %v, %d not judged meanwhile",
			promoted.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond), counted().Error-before)
		if time.Since(start) < least-room {
			old.Restart(t)
			redis.Await(t)
		}
	}
	for time.Since(start) < least {
		l.next(t, 50)
	}
	all := l.stop()
	theirs, ours := counted(), answered(t, f.services...)
	gaveUp := 0
	for _, e := range envoys {
		gaveUp += e.stats(t, "cluster.rls.upstream_rq_timeout")["cluster.rls.upstream_rq_timeout"]
	}
	t.Logf("%v: %v", time.Since(start).Round(time.Second), all)
	t.Logf("Envoy counted %+v, and gave up on %d; ratelimitd counted %+v", theirs, gaveUp, ours)

	if all.Failed != 0 {
		t.Errorf("%d requests were lost", all.Failed)
	}
	if theirs.OK < users*limit {
		t.Errorf("%d passed that were judged, fewer than the limit of %d users", theirs.OK, users)
	}
	if all.Answered == 0 || all.Denied == 0 || theirs.Error == 0 {
		t.Error("the load did not show everything")
	}
	if theirs.OK+theirs.FailureModeAllowed != all.Answered || theirs.OverLimit != all.Denied || theirs.Error != theirs.FailureModeAllowed {
		t.Errorf("Envoy counted %+v of %v", theirs, all)
	}
	// A call on which Envoy gave up is an error for Envoy. Our services count it by the answer that came too late.
	late := ours.sum() - theirs.sum()
	if theirs.Error-ours.Failed > gaveUp || ours.OK-theirs.OK > gaveUp || ours.OverLimit-theirs.OverLimit > gaveUp || late > 0 || -late > gaveUp ||
		ours.OK < theirs.OK || ours.OverLimit < theirs.OverLimit || theirs.Error < ours.Failed {
		t.Errorf("Envoy counted %+v and gave up on %d, ratelimitd counted %+v", theirs, gaveUp, ours)
	}
}
