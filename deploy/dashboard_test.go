package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

const (
	shop = `# round %d
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: bulk
    rate_limit: {unit: hour, requests_per_unit: 1000000, lease: true}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: burst # counted in the Redis for limits per second, which is not there
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: page
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: contract
    rate_limit: {unit: hour, requests_per_unit: 5, regions: {home: us}}
`
	broken = "domain: broken # round %d\ndescriptors: [{key: k, rate_limit: {unit: fortnight, requests_per_unit: 1}}]\n"
	other  = "domain: shop\ndescriptors: [{key: user, overridable: true, rate_limit: {unit: hour, requests_per_unit: 3}}]\n"
)

// mayBeZero lists the queries that stay 0 in the test: they need a defect of the service, or a server that the test
// does not have.
var mayBeZero = []string{
	"Panics A",                                  // a defect
	"Hot keys without a list of their own A",    // needs several decisions at one moment
	"Hot keys without a list of their own B",    // needs more busy rules than there are lists
	"Metric series by rule B",                   // needs more names than are kept
	"Connected to the xDS server A",             // the process finds no server
	"Other regions A",                           // the other region is not there
	"Queries for another home A",                // the same
	"Hits that other regions do not know yet A", // the same
	"Overrides B",                               // Redis has lost nothing
	"Rules without hits A",                      // lists rules whose number is 0
}

// TestDashboardHasData asks a real Prometheus every query of the dashboard. It scrapes four processes under load: one
// that counts in Redis, one in memory and in shadow mode, one that waits for an xDS server, and one that is down. A
// panel without data, or with nothing but zeros, is a defect: its query asks for something that is not there.
//
// Some panels are empty in most installations. They are filled here as follows:
//
//   - Answers that are not decisions: requests without a domain
//   - Answers that no limit decided: an unknown domain, a key without a rule, SHADOW_MODE, and on_error
//   - Breakers, Requests that Redis did not count: a Redis for limits per second that is not there
//   - Denial cache, Leased permits: the setting, and a rule with lease
//   - Reloads, Files with errors, Rules gone: files that change, one with an error, and a directory that is emptied
//   - Different sets of rules: the two processes have different ones
//   - Metric series by rule: detailed_metric
//   - Time until certificates expire: a certificate for the admin port
//   - Other regions, Attempts whose home is another region: a region that is not there, and a rule whose home it is
//   - Overrides: a file with one
func TestDashboardHasData(t *testing.T) {
	for name, from := range map[string]string{"redis-server": "workshop/scripts/install-redis", "prometheus": "workshop/scripts/install-promtool"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, name+": "+from+" gets it")
		}
	}
	write := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	redis := filepath.Join(image(t), startRedis(t, "redis"))
	first, second, certificates := t.TempDir(), t.TempDir(), t.TempDir()
	write(first, "shop.yaml", fmt.Sprintf(shop, 0))
	write(second, "shop.yaml", other)
	write(second, "gone.yaml", "domain: gone\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 3}}]\n")
	writeCertificate(t, certificates)
	inRedis := serveOutside(t, "--rules", first,
		"REDIS_URL="+redis, "REDIS_SOCKET_TYPE=unix", "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=unix", "REDIS_PERSECOND_URL="+redis+".nobody",
		"RATELIMITD_ON_ERROR=allow", "LOCAL_CACHE_SIZE_IN_BYTES=1000000",
		"RATELIMITD_ADMIN_TLS_CERT="+filepath.Join(certificates, "tls.crt"), "RATELIMITD_ADMIN_TLS_KEY="+filepath.Join(certificates, "tls.key"),
		"RATELIMITD_REGION=eu", "RATELIMITD_REGIONS=eu,us=127.0.0.1:1", "RATELIMITD_REGIONS_LISTEN=127.0.0.1:0",
		"RATELIMITD_REGIONS_TLS_CERT="+filepath.Join(certificates, "tls.crt"), "RATELIMITD_REGIONS_TLS_KEY="+filepath.Join(certificates, "tls.key"),
		"RATELIMITD_REGIONS_TLS_CACERT="+filepath.Join(certificates, "tls.crt"))
	overrides := filepath.Join(t.TempDir(), "overrides.yaml")
	write(filepath.Dir(overrides), "overrides.yaml", "overrides: [{domain: shop, rule: shop.user, entries: user=ann, requests_per_unit: 5}]\n")
	inMemory := serveOutside(t, "--rules", second, "SHADOW_MODE=true", "RATELIMITD_OVERRIDES="+overrides)
	overXDS := serveOutside(t, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1")
	prometheus := startPrometheus(t, inRedis.http, inMemory.http, overXDS.http, "127.0.0.1:1")

	keepBusy(t, inRedis)

	// Round by round: traffic, then the queries that had no answer yet.
	asks := dashboardQueries(t)
	waiting := slices.Sorted(maps.Keys(asks))
	legends := make(map[string]string)
	// Prometheus scrapes as often, and the service reads a file once it has not changed for 400 ms
	every := time.NewTicker(time.Second)
	defer every.Stop()
	deadline := time.Now().Add(3 * time.Minute)
	for round := 1; len(waiting) > 0 && time.Now().Before(deadline); round++ {
		<-every.C
		write(first, "shop.yaml", fmt.Sprintf(shop, round))
		write(first, "broken.yaml", fmt.Sprintf(broken, round))
		if round == 3 {
			for _, name := range []string{"shop.yaml", "gone.yaml"} {
				if err := os.Remove(filepath.Join(second, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		traffic(t, inRedis, inMemory, round)
		waiting = slices.DeleteFunc(waiting, func(name string) bool {
			done, legend := hasData(t, prometheus, name, asks[name])
			legends[name] = legend
			return done
		})
	}
	for _, name := range waiting {
		t.Errorf("%s shows nothing, or only zeros: %s", name, asks[name].Expr)
	}
	for name, legend := range legends {
		if legend != "" {
			t.Errorf("%s: its legend names %s, which the result does not have", name, legend)
		}
	}
	for _, name := range mayBeZero {
		if _, ok := asks[name]; !ok {
			t.Errorf("mayBeZero has %q, the dashboard does not", name)
		}
	}
}

type query struct{ Expr, LegendFormat string }

// dashboardQueries returns every query that Grafana would send, with all jobs, instances and domains chosen.
func dashboardQueries(t *testing.T) map[string]query {
	t.Helper()
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr, LegendFormat string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	chosen := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1m", "$job", ".*", "$instance", ".*", "$domain", ".*")
	all := make(map[string]query)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			name := p.Title + " " + target.RefID
			if _, twice := all[name]; twice {
				t.Errorf("two panels have the title %q", p.Title)
			}
			all[name] = query{chosen.Replace(target.Expr), target.LegendFormat}
		}
	}
	for _, a := range d.Annotations.List {
		all["annotation "+a.Name] = query{chosen.Replace(a.Expr), ""}
	}
	if len(all) < 50 {
		t.Fatalf("only %d queries", len(all))
	}
	return all
}

var legendLabel = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

// hasData sends a query. It has data if a value is a number other than 0. The legend is a label in its legend that no
// series of the result has.
func hasData(t *testing.T, prometheus, name string, q query) (done bool, legend string) {
	t.Helper()
	resp, err := http.Get(prometheus + "/api/v1/query?query=" + url.QueryEscape(q.Expr))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	type series struct {
		Metric map[string]string
		Value  [2]any // time and value
	}
	var answer struct {
		Status string
		Data   struct{ Result []series }
	}
	if err := json.Unmarshal(b, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: Prometheus answers %s", name, b)
	}
	for _, s := range answer.Data.Result {
		if v := s.Value[1]; v != "NaN" && (v != "0" || slices.Contains(mayBeZero, name)) {
			done = true
		}
	}
	if !done {
		return false, ""
	}
	for _, m := range legendLabel.FindAllStringSubmatch(q.LegendFormat, -1) {
		if !slices.ContainsFunc(answer.Data.Result, func(s series) bool { return s.Metric[m[1]] != "" }) {
			legend = m[1]
		}
	}
	return true, legend
}

// keepBusy sends requests that a lease answers, until the end of the test. A process holds leased permits for half a
// second, so a scrape finds some only where traffic is steady.
func keepBusy(t *testing.T, s served) {
	t.Helper()
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		every := time.NewTicker(4 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-stop:
				return
			case <-every.C:
			}
			body := `{"domain": "shop", "descriptors": [{"entries": [{"key": "bulk", "value": "import"}]}]}`
			resp, err := http.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
			if err != nil {
				t.Errorf("send a request: %v", err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body) // a broken answer shows in the panels
			_ = resp.Body.Close()
		}
	})
	t.Cleanup(func() {
		close(stop)
		sending.Wait()
	})
}

// traffic sends requests of every kind that a panel shows. Each round has new customers, so that counters of every kind
// grow after Prometheus has seen them.
func traffic(t *testing.T, inRedis, inMemory served, round int) {
	t.Helper()
	send := func(s served, domain, entries string) {
		ask(t, s, fmt.Sprintf(`{"domain": %q, "descriptors": [{"entries": [%s]}]}`, domain, entries))
	}
	for i := range 12 {
		send(inRedis, "shop", fmt.Sprintf(`{"key": "user", "value": "%d"}`, round))
		send(inRedis, "shop", fmt.Sprintf(`{"key": "trial", "value": "%d"}`, round))
		send(inRedis, "shop", fmt.Sprintf(`{"key": "page", "value": "%d-%d"}`, round, i))
		send(inRedis, "shop", fmt.Sprintf(`{"key": "burst", "value": "%d"}`, i))
		send(inMemory, "shop", fmt.Sprintf(`{"key": "user", "value": "%d"}`, round))
	}
	send(inRedis, "shop", `{"key": "contract", "value": "1"}`)
	send(inRedis, "shop", `{"key": "usr", "value": "1"}`)
	send(inRedis, "shopp", `{"key": "user", "value": "1"}`)
	send(inRedis, "", `{"key": "user", "value": "1"}`)
	call := exec.Command(filepath.Join(image(t), "bin/ratelimitd"), "call", "--server", inRedis.grpc, "--domain", "shop", "--count", "20", fmt.Sprintf("user=grpc%d", round))
	if out, err := call.CombinedOutput(); err != nil && call.ProcessState.ExitCode() != 4 { // 4: some are rejected
		t.Fatalf("ratelimitd call: %v\n%s", err, out)
	}
}

// serveOutside runs the image's program without a chroot: metrics of the process come from /proc. Arguments with a =
// are variables.
func serveOutside(t *testing.T, args ...string) served {
	t.Helper()
	var env []string
	args = slices.DeleteFunc(args, func(a string) bool {
		variable := regexp.MustCompile(`^[A-Z_]+=`).MatchString(a)
		if variable {
			env = append(env, a)
		}
		return variable
	})
	return serve(t, exec.Command(filepath.Join(image(t), "bin/ratelimitd"), args...), env)
}

var listensOn = regexp.MustCompile(`msg="Listening on".*address=(127\.0\.0\.1:\d+)`)

// startPrometheus starts a Prometheus that scrapes every second, and returns its address.
func startPrometheus(t *testing.T, targets ...string) string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: ratelimitd\n    static_configs: [{targets: ['%s']}]\n", strings.Join(targets, "', '"))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	for deadline := time.After(time.Minute); ; {
		if m := listensOn.FindStringSubmatch(log.String()); m != nil {
			return "http://" + m[1]
		}
		select {
		case <-ended:
			t.Fatalf("prometheus ended:\n%s", log.String())
		case <-deadline:
			t.Fatalf("prometheus does not listen:\n%s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// writeCertificate writes a certificate and its key, as a secret of Kubernetes has them.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	template.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/region/eu"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDashboardLinks leads from panels to the runbook: every alert has a panel that shows its metric and links to its
// section, and no link leads elsewhere.
func TestDashboardLinks(t *testing.T) {
	b, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var alerts struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(b, &alerts); err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`\b(?:up|ratelimitd_\w+)\b`)
	expr, linked := make(map[string]string), make(map[string]bool)
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			expr[r.Annotations["runbook_url"]] = r.Expr
		}
	}
	for _, p := range panels(t) {
		for _, link := range p.Links {
			of, ok := expr[link.URL]
			if !ok {
				t.Errorf("%q links to %s, where no alert leads", p.Title, link.URL)
			}
			linked[link.URL] = true
			shows := slices.ContainsFunc(p.Targets, func(target struct{ RefID, Expr string }) bool {
				return slices.Contains(metric.FindAllString(target.Expr, -1), metric.FindString(of))
			})
			if !shows {
				t.Errorf("%q links to %s, and does not show %s", p.Title, link.URL, metric.FindString(of))
			}
		}
	}
	for section := range expr {
		if !linked[section] {
			t.Errorf("no panel links to %s", section)
		}
	}
}

// TestDashboardAxes checks that every axis has a unit. Where numbers have none, the label of the axis names the counted
// things. A panel that shows both rates and amounts has an axis for each.
func TestDashboardAxes(t *testing.T) {
	for _, p := range panels(t) {
		if p.Type != "timeseries" {
			continue
		}
		d := p.FieldConfig.Defaults
		if (d.Unit == "short" || d.Unit == "none") && d.Custom.AxisLabel == "" {
			t.Errorf("the axis of %q does not say what is counted", p.Title)
		}
		own := make(map[string]bool) // queries with a separate axis
		for _, o := range p.FieldConfig.Overrides {
			if o.Matcher.ID == "byFrameRefID" {
				own[fmt.Sprint(o.Matcher.Options)] = true
			}
		}
		perSecond := map[bool]bool{}
		for _, target := range p.Targets {
			if !own[target.RefID] {
				perSecond[strings.Contains(target.Expr, "rate(") && !strings.Contains(target.Expr, "/")] = true
			}
		}
		if len(perSecond) > 1 {
			t.Errorf("%q shows rates and amounts on one axis", p.Title)
		}
	}
}
