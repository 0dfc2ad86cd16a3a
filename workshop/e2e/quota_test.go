package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// quotaExample is the configuration that docs/do/quota.md shows.
const quotaExample = "../../examples/envoy-quota/envoy.yaml"

// startQuotaEnvoy starts an Envoy on the example, with these services.
func startQuotaEnvoy(t *testing.T, name string, services ...*service) *envoy {
	t.Helper()
	text, err := os.ReadFile(quotaExample)
	if err != nil {
		t.Fatal(err)
	}
	const only = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}}"
	var endpoints []string
	for _, s := range services {
		endpoints = append(endpoints, strings.Replace(only, "8081", port(s.GRPC), 1))
	}
	changed := strings.NewReplacer("port_value: 10000}", "port_value: 0}", "port_value: 9901}", "port_value: 0}", only, strings.Join(endpoints, ", ")).Replace(string(text))
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return startEnvoyOn(t, name, file)
}

// pace sends requests to an Envoy at an even pace until its test ends or it is stopped, and counts how many pass in
// each second.
type pace struct {
	stop   context.CancelFunc
	ended  sync.WaitGroup
	began  time.Time
	mu     sync.Mutex
	passed map[int]int // requests that passed, by second after the start
	sent   map[int]int
}

func startPace(t *testing.T, e *envoy, began time.Time, perSecond int, headers ...string) *pace {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &pace{stop: cancel, began: began, passed: make(map[int]int), sent: make(map[int]int)}
	const connections = 4
	for range connections {
		p.ended.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			every := time.NewTicker(connections * time.Second / time.Duration(perSecond))
			defer every.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-every.C:
				}
				p.request(ctx, client, e.ports["front"], headers)
			}
		})
	}
	t.Cleanup(p.end)
	return p
}

func (p *pace) end() {
	p.stop()
	p.ended.Wait()
}

func (p *pace) request(ctx context.Context, client *http.Client, addr string, headers []string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	second := int(time.Since(p.began) / time.Second)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[second]++
	if answer.StatusCode == http.StatusOK {
		p.passed[second]++
	}
}

// between returns how many requests passed, and how many were sent, from one second to another one.
func (p *pace) between(from, to int) (passed, sent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := from; s < to; s++ {
		passed, sent = passed+p.passed[s], sent+p.sent[s]
	}
	return passed, sent
}

// quotaRun is a test in which Envoys start and stop.
type quotaRun struct {
	*testing.T
	began time.Time
	paces []*pace
	table strings.Builder
}

const (
	quotaLimit = 100 // per second, of the example's free plan
	quotaBurst = 100
)

func newQuotaRun(t *testing.T) *quotaRun {
	return &quotaRun{T: t, began: time.Now()}
}

func (r *quotaRun) now() int { return int(time.Since(r.began) / time.Second) }

// load sends 120 requests per second to an Envoy.
func (r *quotaRun) load(e *envoy) *pace {
	p := startPace(r.T, e, r.began, 120, "x-plan", "free")
	r.paces = append(r.paces, p)
	return p
}

// phase lets time pass: during settle, shares may move; during long, it measures the use of the limit. It checks that
// no more than the bound passed, and that the Envoys with requests used almost all of the limit, in fair parts. On a
// busy machine reports and answers are late. So it measures again every second, for up to 15 s: up to a minute with the
// race detector, and up to 4 s if nothing has to settle.
func (r *quotaRun) phase(what string, settle, long time.Duration, asking ...*pace) {
	r.Helper()
	patience := 15 * time.Second
	switch {
	case settle == 0:
		patience = 4 * time.Second
	case racetest.On:
		patience = time.Minute
	}
	from := r.now()
	<-time.After(settle + long)
	wrong, row := r.used(long, asking)
	for late := time.Duration(0); wrong != "" && late < patience; late += time.Second {
		<-time.After(time.Second)
		wrong, row = r.used(long, asking)
	}
	if wrong != "" {
		r.Errorf("%s: %s", what, wrong)
	}
	to, all := r.now(), 0
	for _, p := range r.paces {
		n, _ := p.between(from, to)
		all += n
	}
	limit, bound := quotaLimit*(to-from), quotaLimit*(to-from)+quotaBurst
	fmt.Fprintf(&r.table, "| %s | %d s | %d | %d | %d | %s |\n", what, to-from, limit, bound, all, row)
	if all > bound+first*len(r.paces) {
		r.Errorf("%s: %d requests passed in %d s; the bound is %d", what, all, to-from, bound)
	}
}

// used checks the use of the limit in the last seconds. wrong is empty if almost all of it was used, in fair parts. row
// is the end of a row of the table.
func (r *quotaRun) used(long time.Duration, asking []*pace) (wrong, row string) {
	to := r.now()
	after := to - int(long/time.Second) + 1
	sum, wanted := 0, 0
	var each []string
	for i, p := range asking {
		n, sent := p.between(after, to)
		sum, wanted = sum+n, wanted+sent
		each = append(each, fmt.Sprintf("%.0f", float64(n)/float64(to-after)))
		if fair := float64(quotaLimit*(to-after)) / float64(len(asking)); float64(n) < 0.7*min(fair, float64(sent)) {
			wrong = fmt.Sprintf("client %d passed %d of %d in %d s, its fair share is %.0f", i, n, sent, to-after, fair)
		}
	}
	most := min(quotaLimit*(to-after), wanted) // a busy machine cannot send more
	used := float64(sum) / float64(max(most, 1))
	if used < 0.95 {
		wrong = fmt.Sprintf("%.0f%% of the limit was used", 100*used)
	}
	return wrong, fmt.Sprintf("%s | %.0f%%", strings.Join(each, ", "), 100*used)
}

// first is how many requests of an Envoy may pass before it has an assignment, and in the time by which its clock and
// the test's clock differ.
const first = 30

// Envoys share a limit while others start, stop and are killed, and while the service is restarted and killed.
func TestQuotaAmongEnvoys(t *testing.T) {
	needsEnvoy(t)
	t.Parallel()
	s := startService(t, "ratelimitd", "../../examples/envoy-quota/rules")
	one, two, three := startQuotaEnvoy(t, "one", s), startQuotaEnvoy(t, "two", s), startQuotaEnvoy(t, "three", s)
	r := newQuotaRun(t)
	a := r.load(one)
	r.phase("one Envoy", time.Second, 6*time.Second, a)
	b := r.load(two)
	r.phase("a second one joins", 10*time.Second, 6*time.Second, a, b)
	c := r.load(three)
	r.phase("a third one joins", 12*time.Second, 6*time.Second, a, b, c)
	c.end()
	r.phase("one has no requests any more", 22*time.Second, 6*time.Second, a, b)
	two.Kill(t)
	b.end()
	r.phase("one is killed", 34*time.Second, 6*time.Second, a)
	t.Log("what passed, in all and of each Envoy per second\n" + r.table.String())
}

// Processes share a limit through Redis. Redis stops for a while, one process is killed, and the other one is
// restarted. TestNeverMoreThanTheLimit checks in virtual time that the shares stay within the limit during all this.
func TestSoakQuotaAmongProcesses(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes two minutes")
	}
	needsEnvoy(t)
	t.Parallel()
	redis := redistest.Start(t)
	first := startService(t, "first", "../../examples/envoy-quota/rules", "REDIS_URL="+redis.Addr, "REDIS_SOCKET_TYPE=tcp")
	second := startService(t, "second", "../../examples/envoy-quota/rules", "REDIS_URL="+redis.Addr, "REDIS_SOCKET_TYPE=tcp")
	one, two := startQuotaEnvoy(t, "one", first, second), startQuotaEnvoy(t, "two", second, first)
	r := newQuotaRun(t)
	a, b := r.load(one), r.load(two)
	r.phase("two processes", 20*time.Second, 6*time.Second, a, b)
	redis.Pause(t)
	r.phase("Redis hangs", 0, 8*time.Second, a, b)
	redis.Continue(t)
	second.Kill(t)
	r.phase("a process is killed", 26*time.Second, 6*time.Second, a, b)
	second.start(t)
	first.restart(t)
	r.phase("the other one is restarted", 44*time.Second, 6*time.Second, a, b)
	t.Log("what passed, in all and of each Envoy per second\n" + r.table.String())
}

// A rolling restart: a process is killed, and half a minute later it returns while the other one ends. The shares of
// both move with their clients to the process that still runs.
func TestSoakRollingRestartOfQuotas(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes two minutes")
	}
	needsEnvoy(t)
	t.Parallel()
	redis := redistest.Start(t)
	ends := startService(t, "ends", "../../examples/envoy-quota/rules", "REDIS_URL="+redis.Addr, "REDIS_SOCKET_TYPE=tcp")
	back := startService(t, "back", "../../examples/envoy-quota/rules", "REDIS_URL="+redis.Addr, "REDIS_SOCKET_TYPE=tcp")
	one, two := startQuotaEnvoy(t, "one", ends, back), startQuotaEnvoy(t, "two", back, ends)
	r := newQuotaRun(t)
	a, b := r.load(one), r.load(two)
	measure := func(what string, d time.Duration) {
		from := r.now()
		<-time.After(d)
		to := r.now()
		x, _ := a.between(from, to)
		y, _ := b.between(from, to)
		limit := quotaLimit * (to - from)
		t.Logf("%s: %d of %d passed (%.0f%%), %d and %d", what, x+y, limit, 100*float64(x+y)/float64(limit), x, y)
		if float64(x+y) < 0.85*float64(limit) || x+y > limit+quotaBurst+first*len(r.paces) {
			t.Errorf("%s: %d of %d passed", what, x+y, limit)
		}
	}
	<-time.After(20 * time.Second)
	back.Kill(t)
	measure("one is killed", 32*time.Second)
	back.start(t)
	ends.Signal(t, syscall.SIGTERM)
	measure("it comes back, and the other one ends", 50*time.Second)
}
