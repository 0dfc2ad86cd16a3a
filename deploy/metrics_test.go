package deploy

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

const dashboardFile = "grafana/dashboards/ratelimitd.json"

// exposed returns every metric that the service has, with its labels. They come from two processes: one that counts in
// memory, and one in Redis with all layers in front of it, in a region.
func exposed(t *testing.T) map[string]map[string]bool {
	t.Helper()
	socket := startRedis(t, "redis")
	certificates, err := os.MkdirTemp(image(t)+"/tmp", "certificates")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(certificates) })
	writeCertificate(t, certificates)
	for _, name := range []string{certificates, certificates + "/tls.crt", certificates + "/tls.key"} {
		if err := os.Chmod(name, 0o755); err != nil { // the image's user reads them
			t.Fatal(err)
		}
	}
	inside := "/tmp/" + filepath.Base(certificates)
	all := map[string]map[string]bool{"up": {}}
	for _, env := range [][]string{
		nil,
		{
			"REDIS_URL=" + socket, "REDIS_SOCKET_TYPE=unix", "LOCAL_CACHE_SIZE_IN_BYTES=100000", "RATELIMITD_OVERRIDES=redis",
			"RATELIMITD_REGION=eu", "RATELIMITD_REGIONS=eu,us=127.0.0.1:1", "RATELIMITD_REGIONS_LISTEN=127.0.0.1:0",
			"RATELIMITD_REGIONS_TLS_CERT=" + inside + "/tls.crt", "RATELIMITD_REGIONS_TLS_KEY=" + inside + "/tls.key",
			"RATELIMITD_REGIONS_TLS_CACERT=" + inside + "/tls.crt",
		},
	} {
		s := serveInImage(t, env, "/bin/ratelimitd", "--rules", "config/domains")
		ask(t, s, `{"domain":"messaging","descriptors":[{"entries":[{"key":"to_number","value":"1"}]}]}`)
		ask(t, s, `{"domain":"messaging","descriptors":[{"entries":[{"key":"to_numbr","value":"1"}]}]}`) // no rule matches it
		resp, err := http.Get("http://" + s.http + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		read := expfmt.NewTextParser(model.UTF8Validation)
		families, err := read.TextToMetricFamilies(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range families {
			names := []string{name}
			if f.GetType().String() == "HISTOGRAM" {
				names = []string{name + "_bucket", name + "_sum", name + "_count"}
			}
			for _, n := range names {
				if all[n] == nil {
					all[n] = make(map[string]bool)
				}
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						all[n][l.GetName()] = true
					}
				}
				if strings.HasSuffix(n, "_bucket") {
					all[n]["le"] = true
				}
			}
		}
	}
	// These come from /proc, which a container has and a bare chroot has not.
	all["process_cpu_seconds_total"], all["process_resident_memory_bytes"] = map[string]bool{}, map[string]bool{}
	all["ratelimitd_xds_connected"] = map[string]bool{} // these services read files
	return all
}

// startRedis starts a real Redis on a unix socket inside the image's /tmp and returns the path that the image sees.
func startRedis(t *testing.T, name string) string {
	t.Helper()
	socket := filepath.Join(image(t), "tmp", name+".sock")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--unixsocketperm", "777", "--save", "", "--appendonly", "no")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := ""
	for buf := make([]byte, 4096); !strings.Contains(strings.ToLower(said), "ready to accept connections"); {
		n, err := out.Read(buf)
		said += string(buf[:n])
		if err != nil {
			t.Fatalf("redis-server: %v\n%s", err, said)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return "/tmp/" + name + ".sock"
}

// expressions returns every PromQL expression of alerts and dashboard, by where it stands.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	b, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(b, &alerts); err != nil {
		t.Fatal(err)
	}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	return all
}

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ RefID, Expr string }
	Links       []struct{ URL string }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct{ AxisLabel string }
		}
		Overrides []struct {
			Matcher struct {
				ID      string
				Options any
			}
		}
	}
}

func panels(t *testing.T) []panel {
	t.Helper()
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d.Panels
}

// TestMetricsExist checks that the service exposes every metric of every expression, and every label by which it is
// queried.
func TestMetricsExist(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		missing(t, "redis-server: workshop/scripts/install-redis gets it")
	}
	known := exposed(t)
	scraper := []string{"job", "instance", model.MetricNameLabel} // Prometheus' own
	for where, text := range expressions(t) {
		expr, err := parser.ParseExpr(strings.NewReplacer("$__rate_interval", "1m", "$__range", "1m").Replace(text))
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		found := false
		have := make(map[string]bool) // labels of any of the expression's metrics
		for _, l := range scraper {
			have[l] = true
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			v, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			found = true
			names, ok := known[v.Name]
			if !ok {
				t.Errorf("%s: the service has no metric %s", where, v.Name)
				return nil
			}
			maps.Copy(have, names)
			for _, m := range v.LabelMatchers {
				if !names[m.Name] && !slices.Contains(scraper, m.Name) {
					t.Errorf("%s: %s has no label %s", where, v.Name, m.Name)
				}
			}
			return nil
		})
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if a, ok := n.(*parser.AggregateExpr); ok {
				for _, l := range a.Grouping {
					if !have[l] {
						t.Errorf("%s: groups by %s, which no metric in it has", where, l)
					}
				}
			}
			return nil
		})
		if !found {
			t.Errorf("%s: %s asks for no metric", where, text)
		}
	}
}

var variable = regexp.MustCompile(`\$[a-zA-Z_]+`)

// TestDashboard looks at the dashboard as a person would: its variables are there, panels do not overlap, and each
// describes its content and how to read it.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID        string
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" {
		t.Error("without a uid every start of Grafana makes another dashboard")
	}
	variables := []string{"$__rate_interval", "$__range"}
	for _, v := range d.Templating.List {
		variables = append(variables, "$"+v.Name)
	}
	for where, expr := range expressions(t) {
		for _, v := range variable.FindAllString(expr, -1) {
			if strings.HasPrefix(where, "panel") && !slices.Contains(variables, v) {
				t.Errorf("%s uses %s, which the dashboard does not have", where, v)
			}
		}
	}
	all := panels(t)
	if len(all) < 15 {
		t.Fatalf("only %d panels", len(all))
	}
	ids := make(map[int]string)
	for i, p := range all {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("%q and %q share the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		if p.Type != "row" && (len(p.Targets) == 0 || p.Description == "" || p.FieldConfig.Defaults.Unit == "") {
			t.Errorf("%q shows nothing, or does not say what and in which unit", p.Title)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q is wider than the page", p.Title)
		}
		for _, q := range all[:i] {
			if p.GridPos.X < q.GridPos.X+q.GridPos.W && q.GridPos.X < p.GridPos.X+p.GridPos.W &&
				p.GridPos.Y < q.GridPos.Y+q.GridPos.H && q.GridPos.Y < p.GridPos.Y+p.GridPos.H {
				t.Errorf("%q lies over %q", p.Title, q.Title)
			}
		}
	}
}

var quotedMetric = regexp.MustCompile("ratelimitd_[a-z_]+")

// TestMetricsAreDocumented checks that the docs explain every metric of alerts and dashboard.
func TestMetricsAreDocumented(t *testing.T) {
	var docs strings.Builder
	files, err := filepath.Glob("../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(b)
	}
	for where, expr := range expressions(t) {
		for _, name := range quotedMetric.FindAllString(expr, -1) {
			for _, part := range [...]string{"_bucket", "_sum", "_count"} { // suffixes of a histogram
				name = strings.TrimSuffix(name, part)
			}
			if !strings.Contains(docs.String(), name) {
				t.Errorf("%s uses %s, which no page of docs/ explains", where, name)
			}
		}
	}
}
