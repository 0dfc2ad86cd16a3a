package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
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
)

// Browser is a page in Chromium.
type Browser struct {
	// Origin, such as http://127.0.0.1:1234, may be asked for anything. Other requests are trouble.
	Origin string

	ctx context.Context

	mu       sync.Mutex
	troubles []string // exceptions, console output, dialogs, unexpected requests
}

// chromium starts a Chromium, once for all tests. Close ends it.
var chromium = sync.OnceValues(func() (context.Context, error) {
	var found string
	for _, name := range []string{
		"chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
		"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
	} {
		if path, err := exec.LookPath(name); err == nil {
			found = path
			break
		}
	}
	if found == "" {
		return nil, exec.ErrNotFound
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(found),
		chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.WindowSize(1240, 900),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work as root
	}
	ctx, stop := context.WithCancel(context.Background())
	ctx, _ = chromedp.NewExecAllocator(ctx, options...)
	ctx, _ = chromedp.NewContext(ctx)
	Close = func() { _ = chromedp.Cancel(ctx); stop() }
	return ctx, chromedp.Do(ctx) // starts Chromium, which would stop at the deadline of this context: so it has none
})

// Close ends the Chromium, if a test opened one. TestMain calls it.
var Close = func() {}

// Open opens a page in a new profile. Without Chromium the test is skipped. In CI it fails instead, because a skipped
// test would go unnoticed.
func Open(t *testing.T) *Browser {
	t.Helper()
	all, err := chromium()
	switch {
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "":
		t.Skip("NOT RUN without a Chromium: workshop/scripts/install-browser installs one, as root")
	case err != nil:
		t.Fatalf("start Chromium, which workshop/scripts/install-browser installs: %v", err)
	}
	ctx, cancel := chromedp.NewContext(all, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &Browser{}
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
func call[P, R any](t *testing.T, b *Browser, command cdp.Command[P, R], params P) R {
	t.Helper()
	r, err := chromedp.Call(b.ctx, command, params)
	b.must(t, err)
	return r
}

func (b *Browser) listen(event any) {
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
		file := e.Type == network.ResourceTypeDocument && strings.HasPrefix(e.Request.URL, "file://")
		data := strings.HasPrefix(e.Request.URL, "data:") // part of the page
		if !file && !data && (b.Origin == "" || !strings.HasPrefix(e.Request.URL, b.Origin+"/")) {
			trouble = "request: " + e.Request.URL
		}
	}
	if trouble != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.troubles = append(b.troubles, trouble)
	}
}

// do runs actions that return nothing.
func (b *Browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	b.must(t, chromedp.Do(b.ctx, steps...))
}

func (b *Browser) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		t.Fatalf("%v; %q", err, b.troubles)
	}
}

// Show opens a file and waits until the page has an element that the selector matches.
func (b *Browser) Show(t *testing.T, name, ready string) {
	t.Helper()
	b.Visit(t, (&url.URL{Scheme: "file", Path: name}).String(), ready)
}

// Visit opens an address and waits until the page has an element that the selector matches.
func (b *Browser) Visit(t *testing.T, address, ready string) {
	t.Helper()
	b.do(t, chromedp.Navigate(address), chromedp.WaitReady(ready))
}

// Quiet fails the test if the page logged or fetched something.
func (b *Browser) Quiet(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.troubles {
		t.Errorf("the page makes trouble: %s", s)
	}
}

// Forget returns and drops the page's log messages so far, for tests that expect an error.
func (b *Browser) Forget() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.troubles
	b.troubles = nil
	return was
}

// Ask returns the value of a JavaScript expression.
func Ask[T any](t *testing.T, b *Browser, expression string) T {
	t.Helper()
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	b.must(t, err)
	return answer
}

// settle waits two frames, so that the page has drawn a change.
func (b *Browser) settle(t *testing.T) {
	t.Helper()
	Ask[bool](t, b, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// Click clicks the element that a selector matches.
func (b *Browser) Click(t *testing.T, selector string) {
	t.Helper()
	b.do(t, chromedp.Click(selector))
	b.settle(t)
}

// Type types a text where the focus is.
func (b *Browser) Type(t *testing.T, text string) {
	t.Helper()
	b.do(t, chromedp.KeyEvent(text))
	b.settle(t)
}

// Paint sets the light or dark theme, and disables animations: a picture in the middle of one differs with every run.
func (b *Browser) Paint(t *testing.T, scheme string) {
	t.Helper()
	b.PaintAs(t, scheme, "")
}

// PaintAs is like Paint, for a medium such as print; empty: the screen.
func (b *Browser) PaintAs(t *testing.T, scheme, media string) {
	t.Helper()
	call(t, b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: media,
		Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
	b.settle(t)
}

// Resize makes the window larger or smaller.
func (b *Browser) Resize(t *testing.T, width, height int64) {
	t.Helper()
	b.do(t, chromedp.EmulateViewport(width, height))
	b.settle(t)
}

// Picture returns the contents of a window of this size, as PNG.
func (b *Browser) Picture(t *testing.T, width, height int64) []byte {
	t.Helper()
	b.Resize(t, width, height)
	return call(t, b, page.CaptureScreenshot, page.CaptureScreenshotParams{}).Data
}

// Cold disables the cache, so that every visit loads all files again.
func (b *Browser) Cold(t *testing.T) {
	t.Helper()
	call(t, b, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
}
