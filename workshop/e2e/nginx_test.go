package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// zone is a limit_req zone of NGINX, and the leaky bucket that means the same. Rates divide 1000, so that NGINX, which
// counts in milliseconds, is exact.
type zone struct {
	name             string
	perSecond, burst int
	nodelay          int // delay= of NGINX; all: nodelay
}

const all = -1

var zones = []zone{
	{name: "queue", perSecond: 2, burst: 3},
	{name: "stages", perSecond: 2, burst: 5, nodelay: 2},
	{name: "nodelay", perSecond: 2, burst: 3, nodelay: all},
	{name: "none", perSecond: 10, burst: 0},
}

// nginx is the directive of the zone in a location.
func (z zone) nginx() string {
	s := "limit_req zone=" + z.name
	if z.burst > 0 {
		s += fmt.Sprintf(" burst=%d", z.burst)
	}
	switch z.nodelay {
	case 0:
	case all:
		s += " nodelay"
	default:
		s += fmt.Sprintf(" delay=%d", z.nodelay)
	}
	return s + ";"
}

// descriptor is the zone as a descriptor of a rule file.
func (z zone) descriptor() string {
	nodelay := strconv.Itoa(z.nodelay)
	if z.nodelay == all {
		nodelay = "all"
	}
	return fmt.Sprintf(`  - {key: zone, value: %s, descriptors: [{key: client, rate_limit: {unit: second, requests_per_unit: %d, algorithm: leaky_bucket, burst: %d, nodelay: %s}}]}
`, z.name, z.perSecond, z.burst, nodelay)
}

// waits returns how long a request waits that has n others before it in the queue.
func (z zone) waits(n int) time.Duration {
	if z.nodelay == all {
		return 0
	}
	return time.Duration(max(0, n-z.nodelay)) * time.Second / time.Duration(z.perSecond)
}

func zoneRules(settings string) string {
	text := "domain: e2e\n" + settings + "descriptors:\n"
	for _, z := range zones {
		text += z.descriptor()
	}
	return text
}

// nginx is a running NGINX.
type nginx struct {
	*servicetest.Process
	client *http.Client
	log    string // its error log
	read   int    // bytes of the log that were read
}

// startNGINX starts NGINX with the zones and these locations in its configuration.
func startNGINX(t *testing.T, settings, locations string, env ...string) *nginx {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join(module, ".tools", "nginx", "usr", "sbin", "nginx"))
	if err == nil {
		_, err = os.Stat(binary)
	}
	if err != nil {
		if binary, err = exec.LookPath("nginx"); err != nil {
			notRun(t, "nginx")
		}
	}
	dir, err := os.MkdirTemp("", "nginx") // not t.TempDir: a unix socket's path has room for about 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := `
env FAKETIME_TIMESTAMP_FILE; # others are removed
env FAKETIME_NO_CACHE;
daemon off;
master_process off;
pid nginx.pid;
error_log errors warn;
events {}
http {
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  limit_req_status 429;
  limit_req_log_level error; # for denials; one level lower for delays
`
	for _, z := range zones {
		config += fmt.Sprintf("  limit_req_zone $arg_client zone=%s:1m rate=%dr/s;\n", z.name, z.perSecond)
	}
	config += settings + "\n  server {\n    listen unix:" + dir + "/socket;\n" + locations + "\n  }\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &nginx{log: filepath.Join(dir, "errors"), client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // its clock may stand still or jump
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dir+"/socket")
		},
	}}}
	cmd := exec.Command(binary, "-p", dir, "-c", "nginx.conf", "-e", "stderr")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	n.Process = servicetest.Run(t, "nginx", cmd)
	await(t, "nginx to listen", func(ctx context.Context) error {
		if !n.Running() {
			t.Fatalf("nginx did not start: %v\nIts configuration:%s", n.Err, config)
		}
		_, err := n.get(ctx, "/")
		return err
	})
	return n
}

// notRun skips a test that lacks a program. In CI the test fails instead.
func notRun(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("no %s: workshop/scripts/install-nginx gets it. In CI this test has to run", program)
	}
	t.Skipf("NOT RUN without %s: workshop/scripts/install-nginx gets it", program)
}

func (n *nginx) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nginx"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := n.client.Do(req)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res, err
}

// logged is a line of NGINX about a request that it delays or denies. The excess is in requests.
var logged = regexp.MustCompile(`(delaying|limiting) request(?:s)?, (?:dry run, )?excess: (\d+)\.(\d{3}),? by zone "(\w+)"`)

// judged is NGINX's decision about a request.
type judged struct {
	zone   string
	denied bool
	delay  time.Duration
}

// next returns the decisions that NGINX has logged since the last call. It logs nothing about requests that pass
// without delay.
func (n *nginx) next(t *testing.T) []judged {
	t.Helper()
	text, err := os.ReadFile(n.log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []judged
	for _, m := range logged.FindAllSubmatch(text[n.read:], -1) {
		i := slices.IndexFunc(zones, func(z zone) bool { return z.name == string(m[4]) })
		excess, _ := strconv.Atoi(string(m[2]) + string(m[3])) // thousandths of a request
		j := judged{zone: zones[i].name, denied: string(m[1]) == "limiting"}
		if !j.denied {
			j.delay = time.Duration((excess-1000*zones[i].nodelay)/zones[i].perSecond) * time.Millisecond
		}
		lines = append(lines, j)
	}
	n.read = len(text)
	return lines
}

// fakeTime returns the library that gives a program a different clock.
func fakeTime(t *testing.T) string {
	t.Helper()
	for _, lib := range []string{filepath.Join(module, ".tools", "nginx", "usr", "lib", "*"), "/usr/lib/*", "/usr/lib", "/usr/lib64"} {
		if found, _ := filepath.Glob(lib + "/faketime/libfaketime.so.1"); len(found) > 0 {
			path, err := filepath.Abs(found[0])
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	notRun(t, "faketime")
	return ""
}

// A leaky bucket judges each request as NGINX's limit_req does, to the millisecond, over many random arrivals. NGINX
// has a clock that stands still between requests. Each of its decisions becomes a case for ratelimitd test.
func TestLeakyBucketIsLimitReq(t *testing.T) {
	racetest.Sequential(t)
	needsEnvoy(t) // the service is built then
	library := fakeTime(t)
	dir := t.TempDir()
	clock := filepath.Join(dir, "clock")
	start := time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	set := func(at time.Duration) {
		at += time.Millisecond / 2 // both round the time: faketime to a float, NGINX down
		text := start.Add(at).Format("2006-01-02 15:04:05.000000")
		if err := os.WriteFile(clock+".new", []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	locations := "    location / { try_files /none =404; }\n"
	for _, z := range zones {
		locations += fmt.Sprintf("    location /%s { %s add_header x-status $limit_req_status always; try_files /none =404; }\n", z.name, z.nginx())
	}
	locations += "    location /two { " + zones[0].nginx() + " " + zones[1].nginx() + " add_header x-status $limit_req_status always; try_files /none =404; }\n"
	n := startNGINX(t, "  limit_req_dry_run on;\n", locations,
		"LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+clock, "FAKETIME_NO_CACHE=1", "TZ=UTC")

	random := rand.New(rand.NewPCG(1, 2))
	cases := "cases:\n"
	counts := make(map[string]int)
	for _, c := range []struct{ path, descriptors string }{
		{"queue", "zone=queue,client=%s"}, {"stages", "zone=stages,client=%s"}, {"nodelay", "zone=nodelay,client=%s"}, {"none", "zone=none,client=%s"},
		{"two", `["zone=queue,client=%s", "zone=stages,client=%[1]s"]`}, // counted in both, or in none
	} {
		cases += fmt.Sprintf("  - name: %s\n    descriptors: %s\n    steps:\n", c.path, fmt.Sprintf(c.descriptors, c.path))
		at := time.Duration(0)
		for range 150 {
			switch random.IntN(10) {
			case 0, 1, 2, 3:
				at += time.Duration(random.IntN(800)) * time.Millisecond
			case 4:
				at += time.Duration(random.IntN(5000)) * time.Millisecond
			}
			set(at)
			res, err := n.get(t.Context(), "/"+c.path+"?client="+c.path)
			if err != nil {
				t.Fatal(err)
			}
			status, _, _ := strings.Cut(res.Header.Get("X-Status"), "_")
			lines := n.next(t)
			counts[c.path+" "+status]++
			step := fmt.Sprintf("      - {at: %v, expect: ", at)
			switch {
			case status == "PASSED" && len(lines) == 0:
				step += "{code: OK, delay: 0s}}\n"
			case status == "DELAYED" && len(lines) == 1 && !lines[0].denied:
				step += fmt.Sprintf("{code: OK, delay: %v}}\n", lines[0].delay)
			case status == "REJECTED" && len(lines) == 1 && lines[0].denied:
				step += "OVER_LIMIT}\n"
			default:
				t.Fatalf("%s at %v: NGINX answers %s and %q, and logs %v", c.path, at, res.Status, status, lines)
			}
			cases += step
		}
	}
	for _, kind := range []string{"queue PASSED", "queue DELAYED", "queue REJECTED", "stages DELAYED", "nodelay REJECTED", "none REJECTED", "two PASSED", "two DELAYED", "two REJECTED"} {
		if counts[kind] < 10 {
			t.Errorf("of the requests only %d are %s: %v", counts[kind], kind, counts)
		}
	}
	for name, text := range map[string]string{"nginx.yaml": zoneRules("admission: all_or_nothing\n"), "nginx_test.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(ratelimitd, "test", dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("5 cases passed")) {
		t.Errorf("NGINX %v, ratelimitd test: %v\n%s", counts, err, out)
	}
	t.Logf("NGINX: %v\n%s", counts, out)
}

// Eight requests arrive together, at NGINX and at Envoy with ratelimitd: both let the same number through, and hold
// each for the same time.
func TestEnvoyWaitsLikeNGINX(t *testing.T) {
	f := startFleet(t, zoneRules("envoy_delay: true\n"))
	locations := ""
	for _, z := range zones {
		locations += fmt.Sprintf("    location /%s/ { %s proxy_pass http://%s; }\n", z.name, z.nginx(), f.upstream.addr)
	}
	n := startNGINX(t, "", locations+"    location = / { return 204; }\n")
	e := startEnvoy(t, bootstrap{
		Clusters: f.clusters(),
		Listeners: []listener{{
			Name: "main", Connections: withoutClientsDelay, FiltersAfter: obeysDelay,
			Routes: perRoute("/", `
- actions:
  - request_headers: {header_name: x-zone, descriptor_key: zone}
  - request_headers: {header_name: x-client, descriptor_key: client}
`),
		}},
	})
	proxies := map[string]func(zone, client string) (int, error){
		"nginx": func(zone, client string) (int, error) {
			res, err := n.get(t.Context(), "/"+zone+"/arrival?via=nginx&client="+client)
			if err != nil {
				return 0, err
			}
			return res.StatusCode, nil
		},
		"envoy": func(zone, client string) (int, error) {
			r, err := e.try(t, "main", "/"+zone+"/arrival?via=envoy", "x-zone", zone, "x-client", client)
			return r.code, err
		},
	}
	for range 2 { // so that all connections are there
		e.get(t, "main", "/", "x-zone", "queue", "x-client", "warm")
	}

	const requests = 8
	const slack = 20 * time.Millisecond // timers count from when the proxy last read the clock
	type result struct {
		start  time.Time
		passed int
		denied time.Duration // time until the last denial
	}
	results := make(map[string]*result)
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	for _, z := range zones[:3] {
		for via, send := range proxies {
			r := &result{start: time.Now()}
			results[z.name+" "+via] = r
			for range requests {
				group.Go(func() {
					code, err := send(z.name, "a")
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err != nil:
						t.Errorf("%s %s: %v", via, z.name, err)
					case code == http.StatusOK:
						r.passed++
					case code == http.StatusTooManyRequests:
						r.denied = time.Since(r.start)
					default:
						t.Errorf("%s %s: status %d", via, z.name, code)
					}
				})
			}
		}
	}
	group.Wait()
	came := make(map[string][]arrival)
	delays := make(map[string][]time.Duration) // delays by zone and proxy: from the answer to Envoy, and from NGINX's log
	for _, a := range f.upstream.arrivals() {
		zone := strings.Split(a.path, "/")[1]
		came[zone+" "+a.via] = append(came[zone+" "+a.via], a)
		if told := a.header.Get("x-envoy-fault-delay-request"); told != "" {
			ms, err := strconv.Atoi(told)
			if err != nil {
				t.Error(err)
			}
			delays[zone+" envoy"] = append(delays[zone+" envoy"], time.Duration(ms)*time.Millisecond)
		}
	}
	for _, j := range n.next(t) {
		if !j.denied {
			delays[j.zone+" nginx"] = append(delays[j.zone+" nginx"], j.delay)
		}
	}
	for _, z := range zones[:3] {
		for via := range proxies {
			name := z.name + " " + via
			r, came, delays := results[name], came[name], delays[name]
			fits := 1 + z.burst // more fit if the machine is slow: the bucket drains until the last denial
			if most := fits + int(r.denied*time.Duration(z.perSecond)/time.Second); r.passed < fits || r.passed > most || r.denied == 0 {
				t.Errorf("%s: %d of %d passed, want %d to %d", name, r.passed, requests, fits, most)
			}
			if len(came) != r.passed {
				t.Errorf("%s: %d passed and %d arrived", name, r.passed, len(came))
			}
			slices.Sort(delays)
			for i, a := range came {
				longest := z.waits(min(i, z.burst)) // behind i others, minus the hits that drained before it came
				if got := a.at.Sub(r.start); got < z.waits(i)-slack {
					t.Errorf("%s: request %d arrived after %v, want %v", name, i+1, got, z.waits(i))
				}
				if from := len(came) - len(delays); i >= from && delays[i-from] > longest+time.Millisecond {
					t.Errorf("%s: request %d has a delay of %v, want at most %v", name, i+1, delays[i-from], longest)
				}
			}
			if z.nodelay == all && len(delays) > 0 || z.nodelay != all && len(delays) == 0 {
				t.Errorf("%s: the delays are %v", name, delays)
			}
		}
	}
}
