package report_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
	"github.com/ratelimitd/ratelimitd/internal/simulate/report"
)

// browser is a Chromium with a page in it.
type browser struct {
	ctx context.Context

	mu       sync.Mutex
	troubles []string // what the console and the network heard
}

// openBrowser starts a Chromium. Where there is none the test is skipped, but not in CI: there nobody would notice.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	var found string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			found = path
			break
		}
	}
	if found == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("no Chromium to look at the report with: scripts/install-browser installs it")
		}
		t.Skip("NOT TESTED: no Chromium to look at the report with: scripts/install-browser installs it")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(found),
		chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.WindowSize(1240, 900),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // root cannot have one
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // starts it; a deadline would end it
		t.Fatal(err)
	}
	b.ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Listen(b.ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	call(t, b, network.Enable, network.EnableParams{})
	call(t, b, cdplog.Enable, cdp.Empty{})
	return b
}

// call sends a command of the protocol.
func call[P, R any](t *testing.T, b *browser, command cdp.Command[P, R], params P) R {
	t.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	b.must(t, err)
	return r
}

func (b *browser) listen(event any) {
	trouble := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		trouble = fmt.Sprintf("exception: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		trouble = fmt.Sprintf("console.%s: %+v", e.Type, e.Args)
	case *cdplog.EventEntryAdded:
		trouble = fmt.Sprintf("%s: %s", e.Entry.Level, e.Entry.Text)
	case *page.EventJavascriptDialogOpening:
		trouble = "dialog: " + e.Message
	case *network.EventRequestWillBeSent:
		if e.Type != network.ResourceTypeDocument || !strings.HasPrefix(e.Request.URL, "file://") {
			trouble = "request: " + e.Request.URL
		}
	}
	if trouble != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.troubles = append(b.troubles, trouble)
	}
}

// do runs what gives no value.
func (b *browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	b.must(t, chromedp.Do(b.ctx, steps...))
}

func (b *browser) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.Fatalf("%v; %q", err, b.troubles)
	}
}

// show writes a report and opens it.
func (b *browser) show(t *testing.T, r *simulate.Report) {
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
	b.do(t, chromedp.Navigate((&url.URL{Scheme: "file", Path: name}).String()), chromedp.WaitReady("html[data-drawn=yes]"))
}

// quiet fails the test if the page made a noise.
func (b *browser) quiet(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.troubles {
		t.Errorf("the page makes trouble: %s", s)
	}
}

// ask gives what an expression of JavaScript comes to.
func ask[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	b.must(t, err)
	return answer
}

// cells is what a table shows, by row.
func cells(t *testing.T, b *browser, id string) [][]string {
	t.Helper()
	return ask[[][]string](t, b, fmt.Sprintf(`[...document.querySelectorAll("#%s tbody tr")].map(r => [...r.cells].map(c => c.innerText.trim()))`, id))
}

// pixels counts those of a chart that have a colour of the page's palette.
func pixels(t *testing.T, b *browser, chart, color string) int {
	t.Helper()
	return ask[int](t, b, fmt.Sprintf(`(() => {
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

// TestReportInBrowser looks at the report of the example in a real browser.
func TestReportInBrowser(t *testing.T) {
	b := openBrowser(t)
	r := example(t, true)
	b.show(t, r)

	if got := ask[[]string](t, b, `["newly-refused", "newly-passed", "refused", "allowed", "bad-lines"].map(id => document.getElementById(id).innerText)`); !cmp.Equal(got, []string{"277", "16", "309", "675", "1"}) {
		t.Errorf("the summary shows %q", got)
	}
	if diff := cmp.Diff([][]string{
		{"198.51.100.7", "205", "505", "0", "shop.remote_address", "2026-03-02 09:34:28"},
		{"192.0.2.66", "40", "180", "30", "shop.remote_address", "2026-03-02 09:11:49"},
		{"192.0.2.9", "32", "60", "18", "shop.method_POST.path_/login.remote_address", "2026-03-02 09:30:11"},
	}, cells(t, b, "newly-refused-callers")); diff != "" {
		t.Errorf("newly refused callers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{
		{"shop.remote_address\nexamples/simulate/stricter/shop.yaml:3", "984", "260", "26.4 %", "0", "30", "245", "15"},
		{"burst 15 per 10 seconds", "", "55", "", "", "", "", ""},
		{"sustained 300 per hour", "", "205", "", "", "", "", ""},
		{"shop.method_POST.path_/login.remote_address\nexamples/simulate/stricter/shop.yaml:13", "70", "49", "70.0 %", "0", "18", "32", "1"},
	}, cells(t, b, "rules")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if rows := cells(t, b, "callers"); len(rows) != 15 || rows[0][0] != "198.51.100.7" || rows[0][2] != "205" {
		t.Errorf("callers: %q", rows)
	}
	for _, scheme := range []string{"light", "dark"} {
		b.paint(t, scheme)
		for _, c := range []struct{ chart, color string }{
			{"chart-requests", "allowed"}, {"chart-requests", "refused"}, {"chart-changes", "refused"}, {"chart-changes", "good"}, {"chart-rules", "c1"}, {"chart-rules", "c2"},
		} {
			if n := pixels(t, b, c.chart, c.color); n < 20 {
				t.Errorf("%s: %d pixels of %s have the colour %s", scheme, n, c.chart, c.color)
			}
		}
	}
	b.paint(t, "light")
	if *update {
		b.picture(t)
	}
	// The legend tells what is under the cursor, in numbers that are not stacked: here the end of the 155th of 212.
	if legend := ask[string](t, b, `(() => {
		const over = document.querySelector("#chart-requests .u-over"), box = over.getBoundingClientRect();
		over.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + box.width * 154.9 / 212, clientY: box.top + 5, bubbles: true }));
		return new Promise(done => setTimeout(() => done([...document.querySelectorAll("#chart-requests .u-legend th, #chart-requests .u-legend td")].map(c => c.innerText.trim()).join(" ")), 200));
	})()`); legend != "time 2026-03-02 09:38:45 UTC allowed 17 refused 22" {
		t.Errorf("the legend is %q", legend)
	}
	for _, width := range []int64{360, 820, 1240} {
		b.resize(t, width, 800)
		if wide := ask[int64](t, b, "document.documentElement.scrollWidth"); wide > width {
			t.Errorf("the page is %d wide in a window of %d", wide, width)
		}
	}
	b.quiet(t)
}

// settle waits until what the page does after a change of its surroundings is drawn.
func (b *browser) settle(t *testing.T) {
	t.Helper()
	ask[bool](t, b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// paint asks for light or dark.
func (b *browser) paint(t *testing.T, scheme string) {
	t.Helper()
	call(t, b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	b.settle(t)
}

func (b *browser) resize(t *testing.T, width, height int64) {
	t.Helper()
	b.do(t, chromedp.EmulateViewport(width, height))
	b.settle(t)
}

// picture takes the one of the documentation.
func (b *browser) picture(t *testing.T) {
	t.Helper()
	b.resize(t, 1240, 1710)
	png := call(t, b, page.CaptureScreenshot, page.CaptureScreenshotParams{}).Data
	if err := os.MkdirAll("docs/images", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("docs/images/simulate-report.png", png, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A report of a log that somebody wrote to break it shows what is in it as text, and nothing happens.
func TestHostileReportInBrowser(t *testing.T) {
	b := openBrowser(t)
	r := hostile(t)
	b.show(t, r)
	rows := cells(t, b, "callers")
	if rows[0][0] != r.Callers.Rows[0].Caller || !strings.HasPrefix(rows[1][0], `<img src=x onerror='document.title="broken"'>`) {
		t.Errorf("callers are shown as %q and %q", rows[0][0], rows[1][0])
	}
	if rules := cells(t, b, "rules"); !strings.HasPrefix(rules[0][0], r.ByRule[0].Rule) || !strings.HasPrefix(rules[3][0], r.ByRule[1].Rule) {
		t.Errorf("rules are shown as %q", rules)
	}
	legend := ask[string](t, b, `document.querySelector("#chart-rules .u-legend").innerText`)
	if !strings.Contains(legend, r.ByRule[0].Rule) {
		t.Errorf("the legend is %q", legend)
	}
	if title := ask[string](t, b, "document.title"); title != "Simulation of examples/simulate/stricter" {
		t.Errorf("the title is %q", title)
	}
	if n := ask[int](t, b, `document.querySelectorAll("img, h1 ~ h1, #warnings b, ul h1").length`); n != 0 {
		t.Errorf("%d elements came out of texts", n)
	}
	if n := pixels(t, b, "chart-rules", "c1"); n < 20 {
		t.Errorf("%d pixels of the first rule", n)
	}
	b.quiet(t)
}

// A report without refusals and without comparison has no chart by rule, and is quiet too.
func TestPlainReportInBrowser(t *testing.T) {
	b := openBrowser(t)
	r := example(t, false)
	for i := range r.ByRule {
		r.ByRule[i].New.Refused, r.ByRule[i].New.OverTime = 0, nil
	}
	clear(r.OverTime.Refused)
	b.show(t, r)
	if n := ask[int](t, b, `document.querySelectorAll("canvas").length`); n != 1 || pixels(t, b, "chart-requests", "allowed") < 20 || pixels(t, b, "chart-requests", "refused") != 0 {
		t.Errorf("%d charts", n)
	}
	b.quiet(t)
}
