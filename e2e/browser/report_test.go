package browser_test

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/e2e/browser"
	"github.com/ratelimitd/ratelimitd/internal/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/simulate"
	"github.com/ratelimitd/ratelimitd/internal/simulate/report"
)

var update = flag.Bool("update", false, "take the pictures of the documentation")

// top is the repository's root.
const top = "../.."

// example is the simulation in the documentation: the stricter rules, compared with the current ones.
func example(t *testing.T, against bool) *simulate.Report {
	t.Helper()
	t.Chdir(top)
	m, errs := accesslog.LoadMapping("examples/simulate/envoy.yaml")
	for _, e := range errs {
		t.Fatal(e)
	}
	rules := func(folder string) simulate.Rules {
		tree, err := simulate.LoadRules(folder, false, descriptor.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return simulate.Rules{Folder: folder, Tree: tree}
	}
	const log = "examples/simulate/access.log"
	o := simulate.Options{
		Rules: rules("examples/simulate/stricter"), Mapping: m, Window: 5 * time.Second, MaxBadLines: 10,
		Logs: []simulate.Log{{Name: log, Open: func() (io.ReadCloser, error) { return os.Open(log) }}},
	}
	if against {
		old := rules("examples/simulate/rules")
		o.Against = &old
	}
	r, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hostile is the example with names that try to inject markup and script.
func hostile(t *testing.T) *simulate.Report {
	t.Helper()
	r := example(t, true)
	r.Callers.Rows[0].Caller = `</script><script>document.title="broken"</script>`
	r.Callers.Rows[1].Caller = `<img src=x onerror='document.title="broken"'>` + "\x1b[2J\u202e"
	r.ByRule[0].Rule = `shop.</script><img src=https://example.com/x>_"'&`
	r.ByRule[1].Rule = "<!--<script>"
	r.FirstBad[0].Message = "</ul><h1>broken</h1>\n\x1b[31m"
	r.Warnings = append(r.Warnings, "<b>bold</b>")
	return r
}

// show writes a report and opens it in the browser.
func show(t *testing.T, b *browser.Browser, r *simulate.Report) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := report.WriteHTML(f, r); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b.Show(t, name, "html[data-drawn=yes]")
}

// cells returns the cells of a table, by row.
func cells(t *testing.T, b *browser.Browser, id string) [][]string {
	t.Helper()
	return browser.Ask[[][]string](t, b, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].map(r => [...r.cells].map(c => c.innerText.trim()))`, id))
}

// pixels counts the pixels of a chart that have a colour of the page's palette.
func pixels(t *testing.T, b *browser.Browser, chart, color string) int {
	t.Helper()
	return browser.Ask[int](t, b, fmt.Sprintf(`(() => {
		const chart = document.querySelector("#%s canvas");
		const want = getComputedStyle(document.documentElement).getPropertyValue("--%s").trim();
		const [r, g, b] = [1, 3, 5].map(i => parseInt(want.slice(i, i + 2), 16));
		const copy = new OffscreenCanvas(chart.width, chart.height).getContext("2d", { willReadFrequently: true });
		copy.drawImage(chart, 0, 0);
		const data = copy.getImageData(0, 0, chart.width, chart.height).data;
		let n = 0;
		for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) n++;
		return n;
	})()`, chart, color))
}

// TestReportInBrowser checks the report of the example in a real browser.
func TestReportInBrowser(t *testing.T) {
	b := browser.Open(t)
	r := example(t, true)
	show(t, b, r)

	if got := browser.Ask[[]string](t, b, `["newly-refused", "newly-passed", "refused", "allowed", "bad-lines"].map(id => document.getElementById(id).innerText)`); !cmp.Equal(got, []string{"277", "16", "309", "675", "1"}) {
		t.Errorf("the summary shows %q", got)
	}
	if diff := cmp.Diff([][]string{
		{"198.51.100.7", "205", "505", "0", "shop.remote_address, sustained 300 per hour (205)", "2026-03-02 09:34:28"},
		{"192.0.2.66", "40", "180", "30", "shop.remote_address, burst 15 per 10 seconds (40)", "2026-03-02 09:11:49"},
		{"192.0.2.9", "32", "60", "18", "shop.method_POST.path_/login.remote_address, 5 per minute (32)", "2026-03-02 09:30:11"},
	}, cells(t, b, "newly-refused-callers")); diff != "" {
		t.Errorf("newly refused callers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{
		{"shop.remote_address\nexamples/simulate/stricter/shop.yaml:4", "984", "260", "26.4 %", "0", "30", "245", "15"},
		{"burst 15 per 10 seconds", "", "55", "", "", "", "", ""},
		{"sustained 300 per hour", "", "205", "", "", "", "", ""},
		{"shop.method_POST.path_/login.remote_address\nexamples/simulate/stricter/shop.yaml:14", "70", "49", "70.0 %", "0", "18", "32", "1"},
	}, cells(t, b, "rules")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if rows := cells(t, b, "callers"); len(rows) != 15 || rows[0][0] != "198.51.100.7" || rows[0][2] != "205" {
		t.Errorf("callers: %q", rows)
	}
	for _, scheme := range []string{"light", "dark"} {
		b.Paint(t, scheme)
		for _, c := range []struct{ chart, color string }{
			{"chart-requests", "allowed"}, {"chart-requests", "refused"}, {"chart-changes", "refused"}, {"chart-changes", "good"}, {"chart-rules", "c1"}, {"chart-rules", "c2"},
		} {
			if n := pixels(t, b, c.chart, c.color); n < 20 {
				t.Errorf("%s: %d pixels of %s have the colour %s", scheme, n, c.chart, c.color)
			}
		}
	}
	b.Paint(t, "light")
	if *update {
		picture(t, b)
	}
	// The legend shows the numbers under the cursor, not stacked: here the end of the 155th of 212.
	if legend := browser.Ask[string](t, b, `(() => {
		const over = document.querySelector("#chart-requests .u-over"), box = over.getBoundingClientRect();
		over.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + box.width * 154.9 / 212, clientY: box.top + 5, bubbles: true }));
		return new Promise(done => setTimeout(() => done([...document.querySelectorAll("#chart-requests .u-legend th, #chart-requests .u-legend td")].map(c => c.innerText.trim()).join(" ")), 200));
	})()`); legend != "time 2026-03-02 09:38:45 UTC allowed 17 refused 22" {
		t.Errorf("the legend is %q", legend)
	}
	for _, width := range []int64{360, 820, 1240} {
		b.Resize(t, width, 800)
		if wide := browser.Ask[int64](t, b, "document.documentElement.scrollWidth"); wide > width {
			t.Errorf("the page is %d wide in a window of %d", wide, width)
		}
	}
	b.Quiet(t)
}

// picture takes the picture for the documentation.
func picture(t *testing.T, b *browser.Browser) {
	t.Helper()
	png := b.Picture(t, 1240, 1710)
	if err := os.MkdirAll("docs/images", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("docs/images/simulate-report.png", png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A report of a malicious log shows its content as text, and nothing else happens.
func TestHostileReportInBrowser(t *testing.T) {
	b := browser.Open(t)
	r := hostile(t)
	show(t, b, r)
	rows := cells(t, b, "callers")
	if rows[0][0] != r.Callers.Rows[0].Caller || !strings.HasPrefix(rows[1][0], `<img src=x onerror='document.title="broken"'>`) {
		t.Errorf("callers are shown as %q and %q", rows[0][0], rows[1][0])
	}
	if rules := cells(t, b, "rules"); !strings.HasPrefix(rules[0][0], r.ByRule[0].Rule) || !strings.HasPrefix(rules[3][0], r.ByRule[1].Rule) {
		t.Errorf("rules are shown as %q", rules)
	}
	legend := browser.Ask[string](t, b, `document.querySelector("#chart-rules .u-legend").innerText`)
	if !strings.Contains(legend, r.ByRule[0].Rule) {
		t.Errorf("the legend is %q", legend)
	}
	if title := browser.Ask[string](t, b, "document.title"); title != "Simulation of examples/simulate/stricter" {
		t.Errorf("the title is %q", title)
	}
	if n := browser.Ask[int](t, b, `document.querySelectorAll("img, h1 ~ h1, #warnings b, ul h1").length`); n != 0 {
		t.Errorf("%d elements came out of texts", n)
	}
	if n := pixels(t, b, "chart-rules", "c1"); n < 20 {
		t.Errorf("%d pixels of the first rule", n)
	}
	b.Quiet(t)
}

// A report without refusals and without a comparison has no chart by rule. The browser logs no errors for it either.
func TestPlainReportInBrowser(t *testing.T) {
	b := browser.Open(t)
	r := example(t, false)
	for i := range r.ByRule {
		r.ByRule[i].New.Refused, r.ByRule[i].New.OverTime = 0, nil
	}
	clear(r.OverTime.Refused)
	show(t, b, r)
	if n := browser.Ask[int](t, b, `document.querySelectorAll("canvas").length`); n != 1 || pixels(t, b, "chart-requests", "allowed") < 20 || pixels(t, b, "chart-requests", "refused") != 0 {
		t.Errorf("%d charts", n)
	}
	b.Quiet(t)
}
