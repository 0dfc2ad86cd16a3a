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
	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate/report"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
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
		{"198.51.100.7", "205", "505", "40.6 %", "0 %", "shop.remote_address", "sustained 300 per hour", "none", "205", "2026-03-02 09:34:28"},
		{"192.0.2.66", "40", "180", "30.6 %", "16.7 %", "shop.remote_address", "burst 15 per 10 seconds", "none", "40", "2026-03-02 09:11:49"},
		{"192.0.2.9", "32", "60", "81.7 %", "30.0 %", "shop.method_POST.path_/login.remote_address", "5 per minute", "none", "32", "2026-03-02 09:30:11"},
	}, cells(t, b, "newly-refused-callers")); diff != "" {
		t.Errorf("newly refused callers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{
		{"shop.remote_address\nexamples/simulate/stricter/shop.yaml:4", "burst 15 per 10 seconds\nsustained 300 per hour", "none\nnone", "55\n205", "984", "260", "26.4 %", "0", "30", "245", "15"},
		{"shop.method_POST.path_/login.remote_address\nexamples/simulate/stricter/shop.yaml:14", "5 per minute", "none", "49", "70", "49", "70.0 %", "0", "18", "32", "1"},
	}, cells(t, b, "rules")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{
		{"shop.remote_address\nexamples/simulate/stricter/shop.yaml:4", "− 60 per minute, fixed window\n+ burst: 15 per 10 seconds, fixed window\n+ sustained: 300 per hour, fixed window"},
		{"shop.method_POST.path_/login.remote_address\nexamples/simulate/stricter/shop.yaml:14", "− 20 per minute, fixed window\n+ 5 per minute, sliding window"},
	}, cells(t, b, "changed-rules")); diff != "" {
		t.Errorf("changed rules (-want +got):\n%s", diff)
	}
	if got := browser.Ask[string](t, b, `document.querySelector("h1").innerText + "|" + document.querySelector("header p").innerText`); got != "3 callers would be newly refused|The change refuses 277 of 984 requests (28.2 %) that pass today. They come from 3 callers." {
		t.Errorf("the verdict is %q", got)
	}
	for _, scheme := range []string{"light", "dark"} {
		b.Paint(t, scheme)
		for _, c := range []struct{ chart, color string }{
			{"chart-requests", "allowed"}, {"chart-requests", "refused"}, {"chart-changes", "refused"}, {"chart-changes", "good"},
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
	const legend = `[...document.querySelectorAll("#chart-requests .legend > *")].map(c => c.innerText.replace(/\s+/g, " ").trim()).join(", ")`
	if got := browser.Ask[string](t, b, legend); got != "allowed 675, refused 309, in the whole log" {
		t.Errorf("the legend is %q", got)
	}
	if got := browser.Ask[string](t, b, `(() => {
		const over = document.querySelector("#chart-requests .u-over"), box = over.getBoundingClientRect();
		over.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + box.width * 154.9 / 212, clientY: box.top + 5, bubbles: true }));
		return new Promise(done => setTimeout(() => done(`+legend+`), 200));
	})()`); got != "allowed 17, refused 22, 2026-03-02 09:38:45 UTC" {
		t.Errorf("the legend is %q", got)
	}
	for _, width := range []int64{360, 820, 1240} {
		b.Resize(t, width, 800)
		if wide := browser.Ask[int64](t, b, "document.documentElement.scrollWidth"); wide > width {
			t.Errorf("the page is %d wide in a window of %d", wide, width)
		}
	}
	b.Quiet(t)
}

// click clicks where the middle of an element is, with a real mouse.
func click(t *testing.T, b *browser.Browser, selector string) {
	t.Helper()
	browser.Ask[bool](t, b, fmt.Sprintf(`(document.querySelector(%q).scrollIntoView({ block: "center" }), true)`, selector))
	b.Click(t, selector)
}

// column returns the cells of one column of the visible rows of a table.
func column(t *testing.T, b *browser.Browser, id string, i int) []string {
	t.Helper()
	return browser.Ask[[]string](t, b, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].filter(r => !r.hidden).map(r => r.cells[%d].innerText.trim())`, id, i))
}

// Readers sort and search tables, and hide lines of charts, with the mouse and with the keyboard.
func TestReportIsUsable(t *testing.T) {
	b := browser.Open(t)
	show(t, b, example(t, true))

	// Numbers are sorted as numbers, the largest first; another click turns the order.
	click(t, b, "#newly-refused-callers th:nth-child(3) button")
	if got := column(t, b, "newly-refused-callers", 2); !cmp.Equal(got, []string{"505", "180", "60"}) {
		t.Errorf("sorted by requests: %q", got)
	}
	click(t, b, "#newly-refused-callers th:nth-child(3) button")
	if got := column(t, b, "newly-refused-callers", 2); !cmp.Equal(got, []string{"60", "180", "505"}) {
		t.Errorf("sorted by requests, upwards: %q", got)
	}
	if got := browser.Ask[string](t, b, `document.querySelector("#newly-refused-callers th:nth-child(3)").ariaSort`); got != "ascending" {
		t.Errorf("aria-sort is %q", got)
	}
	click(t, b, "#newly-refused-callers th:nth-child(4) button")
	if got := column(t, b, "newly-refused-callers", 3); !cmp.Equal(got, []string{"81.7 %", "40.6 %", "30.6 %"}) {
		t.Errorf("sorted by share: %q", got)
	}
	click(t, b, "#newly-refused-callers th:first-child button")
	if got := column(t, b, "newly-refused-callers", 0); !cmp.Equal(got, []string{"192.0.2.9", "192.0.2.66", "198.51.100.7"}) {
		t.Errorf("sorted by caller: %q", got)
	}

	before := pixels(t, b, "chart-requests", "refused")
	click(t, b, "#chart-requests .legend button:nth-child(2)")
	if n := pixels(t, b, "chart-requests", "refused"); n != 0 || before < 20 || pixels(t, b, "chart-requests", "allowed") < 20 {
		t.Errorf("%d pixels of what is hidden, %d before", n, before)
	}
	b.Type(t, " ") // the button has the focus
	if n := pixels(t, b, "chart-requests", "refused"); n != before {
		t.Errorf("%d pixels of what is shown again, %d before", n, before)
	}
	browser.Ask[bool](t, b, `(document.querySelector("#chart-changes").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" })), true)`)
	if got := browser.Ask[string](t, b, `document.querySelector("#chart-changes .legend > span").innerText`); got != "2026-03-02 09:00:15 UTC" {
		t.Errorf("the right arrow leads to %q", got)
	}
	b.Quiet(t)
}

// Texts are readable: the contrast of each text with its background meets WCAG AA, light and dark. Tables have heads, and
// headings leave out no level.
func TestReportIsAccessible(t *testing.T) {
	b := browser.Open(t)
	show(t, b, example(t, true))
	for _, scheme := range []string{"light", "dark"} {
		b.Paint(t, scheme)
		if poor := browser.Ask[[]string](t, b, contrast); len(poor) > 0 {
			t.Errorf("%s: %q", scheme, poor)
		}
	}
	if bad := browser.Ask[[]string](t, b, `[
		...[...document.querySelectorAll("th:not([scope]), table:not([aria-labelledby]), input:not(label input), [tabindex]:not([aria-label]):not([aria-labelledby])")].map(e => e.outerHTML.slice(0, 100)),
		...[...document.querySelectorAll("[aria-labelledby]")].filter(e => !document.getElementById(e.getAttribute("aria-labelledby"))).map(e => e.outerHTML.slice(0, 100)),
		...[...document.querySelectorAll("h1, h2, h3")].map(e => e.tagName).filter((h, i, all) => (i === 0) !== (h === "H1") || i > 0 && h[1] - all[i - 1][1] > 1),
	]`); len(bad) > 0 {
		t.Errorf("%q", bad)
	}
	b.Quiet(t)
}

// contrast lists the texts whose contrast with their background is less than 4.5.
const contrast = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = (c) => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
	return [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && !(e instanceof SVGElement) && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
		const [a, b] = [light(rgb(getComputedStyle(e).color).slice(0, 3)), light(behind(e).slice(0, 3))].sort((x, y) => y - x);
		return [(a + 0.05) / (b + 0.05), e];
	}).filter(([ratio]) => ratio < 4.5).map(([ratio, e]) => ratio.toFixed(2) + " " + e.tagName + " " + e.textContent.slice(0, 40));
})()`

// Every part of the report fits a narrow window and a page of paper. The pictures are written to the folder that the
// environment variable REPORT_PICTURES names, to be looked at.
func TestReportPictures(t *testing.T) {
	b := browser.Open(t)
	show(t, b, example(t, true))
	for _, view := range []struct {
		name, scheme, media string
		width               int64
	}{{"wide", "light", "", 1240}, {"dark", "dark", "", 1240}, {"narrow", "light", "", 390}, {"print", "dark", "print", 720}} {
		b.Resize(t, view.width, 900)
		b.PaintAs(t, view.scheme, view.media)
		height := browser.Ask[int64](t, b, "document.documentElement.scrollHeight")
		if wide := browser.Ask[int64](t, b, "document.documentElement.scrollWidth"); wide > view.width {
			t.Errorf("%s: the page is %d wide in a window of %d", view.name, wide, view.width)
		}
		if cut := browser.Ask[[]string](t, b, `[...document.querySelectorAll(".scroll, canvas")].filter(e => innerWidth < 800 && e.getBoundingClientRect().right > innerWidth || getComputedStyle(e).overflowX === "visible" && e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))`); len(cut) > 0 {
			t.Errorf("%s: cut off: %q", view.name, cut)
		}
		if back := browser.Ask[string](t, b, "getComputedStyle(document.body).backgroundColor"); (back == "rgb(20, 24, 31)") != (view.name == "dark") {
			t.Errorf("%s: the page is %s", view.name, back)
		}
		if to := os.Getenv("REPORT_PICTURES"); to != "" {
			if err := os.WriteFile(filepath.Join(to, view.name+".png"), b.Picture(t, view.width, height), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.Quiet(t)
}

// picture takes the picture for the documentation.
func picture(t *testing.T, b *browser.Browser) {
	t.Helper()
	png := b.Picture(t, 1240, 1780)
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
	rows := cells(t, b, "newly-refused-callers")
	if rows[0][0] != r.Callers.Rows[0].Caller || !strings.HasPrefix(rows[1][0], `<img src=x onerror='document.title="broken"'>`) {
		t.Errorf("callers are shown as %q and %q", rows[0][0], rows[1][0])
	}
	if rules := cells(t, b, "rules"); !strings.HasPrefix(rules[0][0], r.ByRule[0].Rule) || !strings.HasPrefix(rules[1][0], r.ByRule[1].Rule) {
		t.Errorf("rules are shown as %q", rules)
	}
	if title := browser.Ask[string](t, b, "document.title"); title != "Simulation of examples/simulate/stricter" {
		t.Errorf("the title is %q", title)
	}
	if n := browser.Ask[int](t, b, `document.querySelectorAll("img, h1 ~ h1, #warnings b, ul h1").length`); n != 0 {
		t.Errorf("%d elements came out of texts", n)
	}
	if n := pixels(t, b, "chart-changes", "refused"); n < 20 {
		t.Errorf("%d pixels of what is newly refused", n)
	}
	b.Quiet(t)
}

// Readers search the callers of a report without a comparison.
func TestCallersAreSearched(t *testing.T) {
	b := browser.Open(t)
	show(t, b, example(t, false))
	if rows := cells(t, b, "callers"); len(rows) != 15 || rows[0][0] != "198.51.100.7" || rows[0][2] != "205" {
		t.Errorf("callers: %q", rows)
	}
	click(t, b, "section:has(#callers) input[type=search]")
	b.Type(t, "LOGIN 192")
	if got := column(t, b, "callers", 0); !cmp.Equal(got, []string{"192.0.2.9"}) {
		t.Errorf("found: %q", got)
	}
	if got := browser.Ask[string](t, b, `document.querySelector("section:has(#callers) [role=status]").innerText`); got != "1 of 15 rows" {
		t.Errorf("the status is %q", got)
	}
	b.Quiet(t)
}

// A report without refusals and without a comparison has one chart. The browser logs no errors for it either.
func TestPlainReportInBrowser(t *testing.T) {
	b := browser.Open(t)
	r := example(t, false)
	for i := range r.ByRule {
		r.ByRule[i].New.Refused = 0
	}
	clear(r.OverTime.Refused)
	show(t, b, r)
	if n := browser.Ask[int](t, b, `document.querySelectorAll("canvas").length`); n != 1 || pixels(t, b, "chart-requests", "allowed") < 20 || pixels(t, b, "chart-requests", "refused") != 0 {
		t.Errorf("%d charts", n)
	}
	b.Quiet(t)
}
