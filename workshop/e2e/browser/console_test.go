package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

// built is the service, made once for all tests.
var built = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "ratelimitd-console-")
	if err != nil {
		return "", err
	}
	return build.Ratelimitd(directory)
})

func TestMain(m *testing.M) {
	code := m.Run()
	browser.Close()
	if name, err := built(); err == nil && strings.Contains(name, "ratelimitd-console-") {
		_ = os.RemoveAll(filepath.Dir(name))
	}
	os.Exit(code)
}

const consoleRules = `domain: shop
descriptors:
  - key: tenant
    overridable: true
    usage: true
    rate_limit: {unit: minute, requests_per_unit: 50}
    descriptors:
      - key: path
        value: /checkout
        rate_limit: {unit: second, requests_per_unit: 2}
      - key: path
        value: /search*
        usage: true
        rate_limit: {name: search, unit: minute, requests_per_unit: 300, algorithm: sliding_window}
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 20, algorithm: token_bucket}
  - key: method
    value: POST
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 10}
`

// slowRules have no window that ends while a test runs.
var slowRules = map[string]string{"shop.yaml": strings.ReplaceAll(consoleRules, "unit: minute", "unit: year")}

const brokenRules = `domain: partners
descriptors:
  - key: partner
    rate_limit: {unit: fortnight, requests_per_unit: 5}
`

const consoleToken = "a-token-that-only-this-test-knows"

// console is a service with its console in a browser.
type console struct {
	*browser.Browser
	service *servicetest.Process
	tokens  string // file
}

// openConsole starts a service and opens its console.
func openConsole(t *testing.T, rules map[string]string, env ...string) *console {
	t.Helper()
	b := browser.Open(t)
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	c := &console{Browser: b, tokens: filepath.Join(t.TempDir(), "tokens")}
	if err := os.WriteFile(c.tokens, []byte("ana "+consoleToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	if err := os.Mkdir(filepath.Join(directory, "rules"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range rules {
		if err := os.WriteFile(filepath.Join(directory, "rules", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "--rules", "rules")
	cmd.Dir = directory
	if err := os.WriteFile(filepath.Join(directory, "overrides.yaml"), []byte("overrides: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append([]string{"DEBUG_HOST=127.0.0.1", "RATELIMITD_OVERRIDES=overrides.yaml", "RATELIMITD_ADMIN_TOKEN_FILE=" + c.tokens}, env...)
	c.service = servicetest.Start(t, "ratelimitd", cmd)
	c.Origin = "http://" + c.service.Debug
	c.Visit(t, c.Origin+"/console/", "h1")
	c.giveToken(t)
	return c
}

func (c *console) giveToken(t *testing.T) {
	t.Helper()
	c.until(t, `document.activeElement.name === "token"`)
	c.Type(t, consoleToken+"\r")
	c.until(t, `!document.querySelector("form.token") && document.querySelector(".dot").innerText === "live"`)
	if said := c.Forget(); len(said) > 1 || len(said) == 1 && !strings.Contains(said[0], "401") {
		t.Errorf("before there was a token, one request may be rejected: that says that a token is needed. The page says %q", said)
	}
}

// until waits until an expression is true. It may fail until then: an element that it needs may be shown later.
func (c *console) until(t *testing.T, expression string) {
	t.Helper()
	tried := "(() => { try { return (" + expression + ") } catch (error) { return false } })()"
	for until := time.Now().Add(servicetest.Patience); !browser.Ask[bool](t, c.Browser, tried); {
		if time.Now().After(until) {
			t.Fatalf("never true: %s\nthe page shows\n%s", expression, c.text(t))
		}
		browser.Ask[bool](t, c.Browser, `new Promise(done => setTimeout(() => done(true), 50))`)
	}
}

func (c *console) text(t *testing.T) string {
	t.Helper()
	return browser.Ask[string](t, c.Browser, `document.body.innerText`)
}

// page shows a page of the console, and waits for a text on it.
func (c *console) page(t *testing.T, hash, text string) {
	t.Helper()
	browser.Ask[bool](t, c.Browser, fmt.Sprintf(`location.hash = %q; true`, hash))
	c.shows(t, text)
}

func (c *console) shows(t *testing.T, text string) {
	t.Helper()
	c.until(t, fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// hits adds n hits with these entries, keys and values in turn, and returns the HTTP status.
func (c *console) hits(t *testing.T, domain string, n int, entries ...string) int {
	t.Helper()
	var pairs []map[string]string
	for i := 0; i+1 < len(entries); i += 2 {
		pairs = append(pairs, map[string]string{"key": entries[i], "value": entries[i+1]})
	}
	body := quoted(map[string]any{"domain": domain, "descriptors": []any{map[string]any{"entries": pairs, "hitsAddend": strconv.Itoa(n)}}})
	answer, err := http.Post("http://"+c.service.HTTP+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// load asks the service until the test ends.
func (c *console) load(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	t.Cleanup(func() { cancel(); asking.Wait() })
	asking.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			tenant := []string{"acme", "acme", "acme", "globex", "initech"}[i%5]
			entries := []map[string]string{{"key": "tenant", "value": tenant}}
			switch i % 7 {
			case 1:
				entries = append(entries, map[string]string{"key": "path", "value": "/checkout"})
			case 2:
				entries = append(entries, map[string]string{"key": "path", "value": "/search/shoes"})
			case 3:
				entries = []map[string]string{{"key": "remote_address", "value": fmt.Sprintf("192.0.2.%d", i%4)}}
			case 4:
				entries = []map[string]string{{"key": "method", "value": "POST"}}
			}
			body, _ := json.Marshal(map[string]any{"domain": "shop", "descriptors": []any{map[string]any{"entries": entries}}})
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.service.HTTP+"/json", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			answer, err := http.DefaultClient.Do(req)
			if err == nil {
				_ = answer.Body.Close()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
}

// fits checks that the page is not wider than the window.
func (c *console) fits(t *testing.T, where string, width int64) {
	t.Helper()
	if wide := browser.Ask[int64](t, c.Browser, "document.documentElement.scrollWidth"); wide > width {
		t.Errorf("%s: the page is %d wide in a window of %d", where, wide, width)
	}
}

// accessible fails the test if axe-core finds something on the page as it is now.
func (c *console) accessible(t *testing.T, where string) {
	t.Helper()
	axe, err := os.ReadFile(top + "/.tools/axe/axe.min.js")
	if err != nil {
		if os.Getenv("RATELIMITD_SITE") != "" {
			t.Fatal(err)
		}
		t.Log("NOT RUN without axe-core: workshop/scripts/install-axe, which needs npm")
		return
	}
	if browser.Ask[bool](t, c.Browser, "!window.axe") {
		browser.Ask[bool](t, c.Browser, string(axe)+"; true")
	}
	if found := browser.Ask[[]string](t, c.Browser, lookForBarriers); len(found) > 0 {
		t.Errorf("%s: %s", where, strings.Join(found, "\n"))
	}
}

const customer = "#/customer?domain=shop&k=tenant&v=acme"

// consolePages are the pages with a text that each has when it is complete.
var consolePages = []struct{ name, hash, text string }{
	{"now", "#/now", "shop.tenant"},
	{"customer", customer, "reset in"},
	{"rules", "#/rules", "shop.yaml:3"},
	{"overrides", "#/overrides", "see the history of that file"},
	{"shares", "#/shares?domain=shop", "No client of this replica uses a quota bucket"},
	{"fleet", "#/fleet", "Rules’ checksum"},
	{"try", "#/try?domain=shop&k=tenant&v=acme&k=path&v=%2Fsearch%2Fshoes", "It matches"},
}

// Every page works under load, wide and narrow, light and dark: it loads nothing from elsewhere, breaks no rule of its
// policy, and fits the window. go test -run Console -update takes the pictures of the documentation.
func TestConsolePages(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": consoleRules, "partners.yaml": brokenRules})
	c.load(t)
	for _, view := range views(1240, 760) {
		view.show(t, c.Browser)
		for _, p := range consolePages {
			c.page(t, p.hash, p.text)
			switch p.name {
			case "now":
				c.until(t, `document.querySelectorAll("tbody tr").length > 4`)
			case "customer":
				c.until(t, `!!document.querySelector('[aria-label="Table: Counters"]')`) // it is wide
			}
			c.fits(t, p.name+"-"+view.name, view.width)
			c.accessible(t, p.name+", "+view.name)
			// taken below, and by other tests
			if *update && view.name == "wide" && !slices.Contains([]string{"now", "overrides", "shares", "fleet"}, p.name) {
				save(t, "console-"+p.name+".png", c.Picture(t, view.width, view.height))
			}
		}
	}
	if *update { // the chart shows something by now
		view := views(1240, 760)[0]
		view.show(t, c.Browser)
		c.page(t, "#/now", "shop.tenant")
		save(t, "console-now.png", c.Picture(t, view.width, view.height))
	}
	c.Quiet(t)
}

// quiet fails the test if the page logged a message that contains none of these texts.
func (c *console) quiet(t *testing.T, but ...string) {
	t.Helper()
	for _, said := range c.Forget() {
		if !slices.ContainsFunc(but, func(text string) bool { return strings.Contains(said, text) }) {
			t.Errorf("the page makes trouble: %s", said)
		}
	}
}

// The first page is small. Pages that the user has left hold no connections that it needs.
func TestConsoleIsSmall(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": consoleRules})
	c.Cold(t)
	for range 8 { // a browser opens six connections to a server
		if firstPage(t, c) > 30_000 { // it would wait for a minute
			t.Fatal("a visit waits for a connection")
		}
	}
}

// The first page appears soon. A busy machine may be slow, so only the quickest of some visits counts.
func TestSoakConsoleIsQuick(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN: it measures time, which needs a machine without other work; make soak runs it")
	}
	c := openConsole(t, map[string]string{"shop.yaml": consoleRules})
	c.Cold(t)
	quickest := math.Inf(1)
	for range 20 {
		quickest = min(quickest, firstPage(t, c))
	}
	if quickest >= 200 {
		t.Errorf("the quickest visit takes %v ms", quickest)
	}
}

// firstPage visits the first page, checks how many bytes it loads, and returns how many milliseconds that took.
func firstPage(t *testing.T, c *console) float64 {
	t.Helper()
	c.Visit(t, "about:blank", "body")
	c.Visit(t, c.Origin+"/console/", "h1")
	spent := browser.Ask[struct{ Bytes, Files, Millis float64 }](t, c.Browser, `(() => {
		const files = performance.getEntriesByType("resource").filter(r => r.initiatorType !== "fetch").concat(performance.getEntriesByType("navigation"));
		const done = Math.max(...files.map(f => f.responseEnd));
		return { Bytes: files.reduce((sum, f) => sum + f.transferSize, 0), Files: files.length, Millis: done };
	})()`)
	t.Logf("%+v", spent)
	if spent.Bytes >= 100<<10 || spent.Files < 10 {
		t.Errorf("the first page takes %+v", spent)
	}
	return spent.Millis
}

// The page of rules shows the rules that were never hit, and the share of hits that each rule denies. A rule in shadow
// mode denies none.
func TestConsoleRulesWork(t *testing.T) {
	c := openConsole(t, slowRules)
	for range 40 {
		c.hits(t, "shop", 1, "remote_address", "192.0.2.1")
	}
	c.hits(t, "shop", 50, "method", "POST")
	c.page(t, "#/rules?find=remote_address", "denies 50.0 %")
	c.page(t, "#/rules?find=checkout", "never hit")
	c.page(t, "#/rules?find=method", "10 per hour")
	c.until(t, `[...document.querySelectorAll("td.n.bad")].map(cell => cell.innerText).join() === "40"`)
	c.quiet(t)
}

// Without rules, and while Redis does not answer, each page still shows everything that it can.
func TestConsoleInTrouble(t *testing.T) {
	for name, env := range map[string][]string{
		"no rules":   {"FORCE_START_WITHOUT_INITIAL_CONFIG=true"},
		"redis down": {"REDIS_URL=127.0.0.1:1", "RATELIMITD_REDIS_STARTUP_SERVE=true"},
	} {
		t.Run(name, func(t *testing.T) {
			rules, alarm := map[string]string{"shop.yaml": consoleRules}, "does not answer this replica"
			if name == "no rules" {
				rules, alarm = map[string]string{"partners.yaml": brokenRules}, "No rules are active"
			}
			c := openConsole(t, rules, env...)
			for _, p := range consolePages {
				text := p.text
				switch {
				case p.name == "now", name == "no rules" && p.name != "fleet" && p.name != "overrides":
					text = alarm
				case p.name == "customer":
					text = "Requests fail: the counters cannot be read"
				}
				c.page(t, p.hash, text)
				c.shows(t, alarm)
				c.fits(t, name+", "+p.name, 1240)
			}
			c.quiet(t, "the server responded with a status of")
		})
	}
}

// We override the limit of one customer: first in a dry run, then for everybody to see, until we remove the override.
func TestConsoleOverrides(t *testing.T) {
	c := openConsole(t, slowRules, "RATELIMITD_OVERRIDES=redis", "REDIS_URL="+redistest.Start(t).Addr)
	c.hits(t, "shop", 60, "tenant", "acme")
	c.page(t, customer, "Denied.")
	c.shows(t, "There is none: the rule’s numbers apply.")
	c.Click(t, "input[name=number]")
	c.Type(t, "200")
	c.Click(t, "input[name=reason]")
	c.Type(t, "a big sale")
	c.push(t, "Dry run")
	c.shows(t, "denied → passes")
	for _, width := range []int64{390, 1240} { // the table stays in its panel, and its first column stays visible
		c.Resize(t, width, 760)
		c.until(t, `(() => {
			const table = document.querySelector('[aria-label="Table: Effects"]'), right = e => e.getBoundingClientRect().right;
			return right(table) <= right(table.closest("section")) && right(table.querySelector("td")) <= right(table);
		})()`)
	}
	c.shows(t, "There is none: the rule’s numbers apply.")
	c.push(t, "Set override")
	c.shows(t, "200 per unit")
	c.shows(t, "The next request passes.")
	c.page(t, "#/overrides", "a big sale")
	c.shows(t, "1 in this replica, version ")
	c.until(t, `[...document.querySelectorAll("section")].some(s => s.innerText.startsWith("History") && s.innerText.includes("a big sale"))`)
	c.push(t, "Edit")
	c.push(t, "Dry run")
	c.shows(t, "A dry run: nothing was changed.")
	if *update {
		save(t, "console-overrides.png", c.Picture(t, 1240, 760))
	}
	c.push(t, "Remove")
	c.push(t, "Yes")
	c.shows(t, "There is no such override.")
	c.page(t, customer+"&k=path&v=%2Fcheckout", "The rule allows none")
	if n := browser.Ask[int](t, c.Browser, `document.querySelectorAll("input[name=number]").length`); n > 0 {
		t.Error("a rule that allows no overrides has a form for them")
	}
	c.page(t, customer, "Denied.")
	c.quiet(t)
}

// Overrides in a file are the operator's to change: the page shows the YAML to write there.
func TestConsoleShowsYAML(t *testing.T) {
	c := openConsole(t, slowRules)
	c.page(t, customer, "There is none: the rule’s numbers apply.")
	c.Click(t, "input[name=number]")
	c.Type(t, "200")
	c.push(t, "Set override")
	c.shows(t, "add this to `overrides`:\n  - domain: shop\n    rule: shop.tenant\n    entries: tenant=acme\n    requests_per_unit: 200")
	c.quiet(t, "the server responded with a status of")
}

// Of several limits, the page of a customer names the one with the lowest remaining number. The numbers have 64 bits,
// so they are strings in JSON.
func TestConsoleComparesNumbers(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": `domain: shop
descriptors:
  - key: tenant
    rate_limits:
      - {name: hourly, unit: hour, requests_per_unit: 10000000000, algorithm: fixed_window}
      - {name: minutely, unit: minute, requests_per_unit: 9000000000, algorithm: fixed_window}
`})
	c.page(t, customer, "The next request passes. 9,000,000,000 of 9,000,000,000 left.")
	c.quiet(t)
}

// counters are the rows of the table of counters, as "entries: used".
const counters = `[...document.querySelectorAll('[aria-label="Table: Counters"] tbody tr')].map(r => r.querySelector("th .name").innerText + ": " + r.querySelectorAll("td")[3].innerText).join("; ")`

// The page of a customer lists all active counters that have its value. One sentence names those that deny: the page
// must never say that all is well while one does. Each counter links to its own page, and can be reset.
func TestConsoleCustomer(t *testing.T) {
	c := openConsole(t, slowRules, "RATELIMITD_OVERRIDES=redis", "REDIS_URL="+redistest.Start(t).Addr)
	c.hits(t, "shop", 43, "tenant", "acme")
	c.hits(t, "shop", 300, "tenant", "acme", "path", "/search/shoes")
	c.hits(t, "shop", 1, "tenant", "acme", "path", "/search/shoes")
	c.hits(t, "shop", 30, "tenant", "acme", "path", "/search/hats")
	c.hits(t, "shop", 3, "tenant", "globex")
	began := time.Now()
	step := func(step string) { t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), step) }
	const want = `tenant=acme: 43; tenant=acme, path=/search/shoes: 300; tenant=acme, path=/search/hats: 30`
	c.page(t, customer, "These entries pass, but acme is denied by 1 of 3 limits: tenant=acme, path=/search/shoes (300 per year) passes again in")
	c.shows(t, "1 of 301 were denied in the last")
	c.until(t, counters+` === `+strconv.Quote(want))
	c.accessible(t, "a customer who is denied elsewhere")
	browser.Ask[bool](t, c.Browser, `document.querySelector(".verdict a").click(), true`)
	c.shows(t, "Denied by 1 of 3 limits. tenant=acme, path=/search/shoes")
	began = time.Now()
	c.page(t, "#/customer", "Which customer?")
	c.Click(t, "textarea[name=entries]")
	c.Type(t, "acme\r")
	c.shows(t, "Denied by 1 of 3 limits. tenant=acme, path=/search/shoes")
	step("the customer is found, and the page says why they are denied")
	reset := func(entries string) {
		t.Helper()
		row := fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find(r => r.querySelector("th .name").innerText === %q)`, entries)
		for _, text := range []string{"Reset", "Yes"} {
			c.until(t, fmt.Sprintf(`(() => { const b = [...%s.querySelectorAll("button")].find(b => b.innerText === %q); if (b) b.click(); return !!b; })()`, row, text))
		}
	}
	reset("tenant=acme, path=/search/shoes")
	c.shows(t, "Cleared: tenant=acme, path=/search/shoes.")
	step("what they used is cleared")
	c.shows(t, "Nothing denies the next request. 7 of 50 left in tenant=acme. But 1 of 301 were denied in the last")
	step("the page says that nothing denies them")
	c.page(t, customer, "The next request passes. 7 of 50 left. But 1 of 301 were denied in the last")
	c.page(t, "#/customer?domain=shop&k=tenant&v=globex", "The next request passes. 47 of 50 left.")
	c.until(t, `document.querySelector(".verdict").className === "verdict good"`)
	c.quiet(t)
}

// A phone shows who is denied, and how much a customer has left and how long they wait, without scrolling a table.
func TestConsoleOnATelephone(t *testing.T) {
	c := openConsole(t, slowRules)
	c.hits(t, "shop", 1234, "tenant", "a-customer-with-a-long-name.example.org")
	c.Resize(t, 390, 760)
	for _, hash := range []string{"#/now", "#/customer", "#/customer?value=a-customer-with-a-long-name.example.org"} {
		c.page(t, hash, "long-name")
		c.until(t, `(() => {
			const shown = [...document.querySelectorAll("tbody tr")].find(r => r.innerText.includes("long-name")).children;
			return [...shown].slice(0, 4).filter(e => e.getBoundingClientRect().right <= 390).length >= Math.min(4, shown.length);
		})()`)
		c.fits(t, hash, 390)
	}
	c.quiet(t)
}

// A client that keeps sending after a reset is denied again soon. The page shows when.
func TestConsoleSaysHowLongAResetLasts(t *testing.T) {
	c := openConsole(t, slowRules)
	c.load(t)
	c.page(t, customer, "Denied")
	c.until(t, `document.querySelector('[aria-label="Table: Counters"] tbody td:nth-of-type(3)').innerText !== "–"`)
	// two looks must have differed
	for text, deadline := "", time.Now().Add(servicetest.Patience); !strings.Contains(text, "They keep sending "); text = c.text(t) {
		if time.Now().After(deadline) {
			t.Fatalf("the page shows\n%s", text)
		}
		c.push(t, "Reset")
		c.push(t, "Yes")
		c.shows(t, "Cleared: tenant=acme.")
	}
	c.shows(t, " a second: a reset lasts ")
	c.quiet(t)
}

// One box finds a customer by a value. It shows the rules under which the customer counts, and how much of each is
// used. So does the list of the busiest customers.
func TestConsoleFindsCustomer(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": slowRules["shop.yaml"], "sms.yaml": `domain: sms
descriptors:
  - key: type
    value: marketing
    descriptors:
      - {key: to, rate_limit: {unit: year, requests_per_unit: 5000}}
  - key: partner
    descriptors:
      - {key: user, usage: true, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: to, rate_limit: {unit: year, requests_per_unit: 100}}
`})
	c.hits(t, "sms", 6000, "type", "marketing", "to", "2065551234")
	c.hits(t, "sms", 40, "to", "2065551234")
	c.hits(t, "sms", 2, "partner", "p1", "user", "2065551234")
	c.page(t, "#/customer", "type=marketing, to=2065551234") // the busiest
	c.Click(t, "textarea[name=entries]")
	c.Type(t, "2065551234\r")
	c.until(t, counters+` === "type=marketing, to=2065551234: 6,000; to=2065551234: 40; partner=p1, user=2065551234: 2"`)
	c.shows(t, "Denied by 1 of 3 limits. type=marketing, to=2065551234 (5,000 per year) passes again in")
	c.accessible(t, "found customers")
	if *update {
		save(t, "console-find.png", c.Picture(t, 1240, 520))
	}
	c.push(t, "Show 3 more that have used nothing")
	c.shows(t, "remote_address=2065551234")
	browser.Ask[bool](t, c.Browser, `document.querySelector("tbody a").click(), true`)
	c.shows(t, "Written in")

	// The rule is chosen, and its keys are fields. The values stay when another rule is chosen.
	choose := func(name, text string) {
		t.Helper()
		c.until(t, fmt.Sprintf(`(() => { const s = document.querySelector("select[name=%s]"), o = s && [...s.options].find(o => o.text === %q);
			if (o) { s.value = o.value; s.dispatchEvent(new Event("change", { bubbles: true })); } return !!o; })()`, name, text))
	}
	const fields = `[...document.querySelectorAll("input[name=value]")].map(i => i.parentNode.innerText + "=" + i.value).join()`
	c.until(t, fields+` === "type=marketing,to=2065551234" && document.querySelector("select[name=rule]").selectedOptions[0].text === "type=marketing, to"`)
	choose("rule", "to")
	c.until(t, fields+` === "to=2065551234"`)
	c.push(t, "Look up")
	c.shows(t, "These entries pass, but 2065551234 is denied by 1 of 3 limits: type=marketing, to=2065551234")
	choose("domain", "shop")
	choose("rule", "tenant, path=/checkout")
	c.until(t, fields+` === "tenant=,path=/checkout"`)
	c.push(t, "Look up")
	c.shows(t, "Enter a value for tenant.")
	c.Click(t, "input[name=value]")
	c.Type(t, "acme\r")
	c.until(t, `location.hash === "#/customer?domain=shop&k=tenant&v=acme&k=path&v=%2Fcheckout"`)
	c.shows(t, "2 of 2 left.")
	c.page(t, "#/customer?domain=other&k=to&v=1", "Nothing limits this: no rules are loaded for this domain")

	// A value without a counter is not a customer. The page says so, and lists the rules that would count it.
	c.page(t, "#/customer?value=acm", "No counter contains acm.")
	c.until(t, `[...document.querySelectorAll("section")].some(s => s.innerText.startsWith("Rules that would count it") && s.innerText.includes("tenant=acm") && s.innerText.includes("50 per year"))`)
	c.quiet(t)
}

// Customers are found where their addresses are grouped, and where the case of letters does not matter: by any of their
// values, and from the list of the busiest.
func TestConsoleFindsGroupedCustomers(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": `domain: shop
descriptors:
  - {key: remote_address, group: ipv6/64, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: user, fold_case: true, rate_limit: {unit: year, requests_per_unit: 5}}
`})
	c.hits(t, "shop", 9, "remote_address", "2001:db8:0:1:2::3")
	c.hits(t, "shop", 8, "user", "Ann|=~")
	for name, said := range map[string]string{"remote_address=2001:db8:0:1::": "6 of 6 were denied", "user=ann|=~": "6 of 6 were denied"} {
		c.page(t, "#/now", name)
		if raw := c.text(t); strings.Contains(raw, "|f") || strings.Contains(raw, "|t") {
			t.Errorf("the page shows the key of a counter:\n%s", raw)
		}
		c.until(t, fmt.Sprintf(`(() => { const a = [...document.querySelectorAll("tbody a")].find(a => a.innerText === %q); if (a) a.click(); return !!a; })()`, name))
		c.shows(t, "Denied. "+name+" (5 per year) passes again in")
		c.shows(t, said)
	}
	c.page(t, "#/customer?value=2001:db8:0:1:ffff::1", "Denied. remote_address=2001:db8:0:1:: (5 per year)")
	c.page(t, "#/customer?value="+url.QueryEscape("ANN|=~"), "Denied. user=ann|=~ (5 per year)")

	// The key of a counter, as it appears in logs, also finds the counter.
	c.page(t, "#/customer", "Which customer?")
	c.Click(t, "textarea[name=entries]")
	c.Type(t, `shop|user=~=ann\|\=\~|f31536000`+"\r")
	c.shows(t, "Denied. user=ann|=~ (5 per year)")
	c.quiet(t)
}

// A name breaks after dots and slashes, and not inside a word. The tab of quota buckets appears if any rule uses them.
func TestConsoleBreaksNames(t *testing.T) {
	path := "/partners/warehouses/deliveries/international/statements"
	c := openConsole(t, map[string]string{"shop.yaml": "domain: shop\ndescriptors:\n  - {key: " + path + ", rate_limit: {unit: day, requests_per_unit: 1}}\n"})
	if code := c.hits(t, "shop", 2, path, ""); code != http.StatusTooManyRequests {
		t.Fatal(code)
	}
	c.page(t, "#/now", path)
	c.Resize(t, 390, 760)
	lines := browser.Ask[[]string](t, c.Browser, `(() => {
		const name = [...document.querySelectorAll("main .name")].find(n => n.innerText === "shop.`+path+`"), lines = [];
		const all = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
		for (let top = -1; all.nextNode();) for (let i = 0; i < all.currentNode.data.length; i++) {
			const r = document.createRange();
			r.setStart(all.currentNode, i); r.setEnd(all.currentNode, i + 1);
			const at = r.getBoundingClientRect().top;
			if (at > top + 3) lines.push("");
			top = at;
			lines[lines.length - 1] += all.currentNode.data[i];
		}
		return lines; })()`)
	if len(lines) < 2 || slices.ContainsFunc(lines[:len(lines)-1], func(l string) bool { return !strings.HasSuffix(l, "/") && !strings.HasSuffix(l, ".") }) {
		t.Errorf("the lines are %q", lines)
	}
	if tabs := browser.Ask[string](t, c.Browser, `document.querySelector("nav").innerText`); strings.Contains(tabs, "Shares") {
		t.Errorf("a process without quota buckets shows the tabs %q", tabs)
	}
	c.page(t, "#/shares?domain=shop", "No client of this replica uses a quota bucket")
	c.quiet(t)
}

// When the server no longer accepts its token, the page shows nothing new and asks for a token; with another token it
// continues. When the process ends, the page marks its numbers as stale.
func TestConsoleLosesToken(t *testing.T) {
	c := openConsole(t, map[string]string{"shop.yaml": consoleRules})
	c.page(t, customer, "reset in")
	const other = "a-token-of-the-role-read-of-this-test"
	if err := os.WriteFile(c.tokens, []byte("bob read "+other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.until(t, `!!document.querySelector("form.token input")`)
	c.shows(t, "the token is unknown")
	c.Click(t, "form.token input")
	c.Type(t, other+"\r")
	c.until(t, `!document.querySelector("form.token") && document.querySelector(".dot").innerText === "live"`)
	c.shows(t, "reset in")
	c.quiet(t, "401")

	// This token only reads. The page shows no button that the role cannot use.
	c.shows(t, "You may look, and change nothing")
	if buttons := browser.Ask[string](t, c.Browser, `[...document.querySelectorAll("main button")].map(b => b.innerText).join()`); strings.Contains(buttons, "Reset") || strings.Contains(buttons, "override") {
		t.Errorf("the role read has the buttons %s", buttons)
	}
	if stored := browser.Ask[string](t, c.Browser, `document.cookie + Object.keys(localStorage).join()`); stored != "" {
		t.Errorf("the page stores %q", stored)
	}

	c.service.Stop(t)
	c.until(t, `document.querySelector(".dot").innerText.startsWith("stale")`)
	c.shows(t, "The numbers are from")
	c.quiet(t, "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")
}

// push clicks the button with this text.
func (c *console) push(t *testing.T, text string) {
	t.Helper()
	c.until(t, fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("button")].find(b => b.innerText === %q); if (b) b.click(); return !!b; })()`, text))
}

// An operator resets a customer's counters with only the keyboard.
func TestConsoleByKeyboard(t *testing.T) {
	c := openConsole(t, slowRules)
	c.hits(t, "shop", 300, "tenant", "acme", "path", "/search/x")
	focused := func() string {
		return browser.Ask[string](t, c.Browser, `document.activeElement.innerText || document.activeElement.name || ""`)
	}
	tab := func(to string) {
		t.Helper()
		for range 60 {
			if focused() == to {
				return
			}
			c.Type(t, "\t")
		}
		t.Fatalf("no way to %q, at %q", to, focused())
	}
	tab("Customer")
	c.Type(t, "\r")
	c.shows(t, "Which customer?")
	tab("entries")
	c.Type(t, `{"domain": "shop", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}, {"key": "path", "value": "/search/x"}]}]}`)
	tab("Look up")
	c.Type(t, "\r")
	c.shows(t, "Denied.")
	tab("Reset")
	c.Type(t, "\r")
	if at := focused(); at != "No" {
		t.Errorf("the focus is at %q, want the answer that changes nothing", at)
	}
	browser.Ask[bool](t, c.Browser, `document.activeElement.previousElementSibling.focus(), true`)
	c.Type(t, "\r")
	c.shows(t, "The next request passes.")
	c.quiet(t)
}

// 100,000 rules are split into pages, and a search finds one of them.
func TestConsoleWithManyRules(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("domain: big\ndescriptors:\n")
	for i := range 100_000 {
		fmt.Fprintf(&rules, "  - {key: tenant, value: t%d, rate_limit: {unit: minute, requests_per_unit: %d}}\n", i, i+1)
	}
	c := openConsole(t, map[string]string{"big.yaml": rules.String()})
	began := time.Now()
	c.page(t, "#/rules", "100,000, hits")
	// including the rule of the file
	if rows := browser.Ask[int](t, c.Browser, `document.querySelectorAll("tbody tr").length`); rows != 101 {
		t.Errorf("%d rows", rows)
	}
	c.push(t, "Next")
	c.shows(t, "page 2 of 1,000")
	c.page(t, "#/rules?find=t99998", "99,999 per minute")
	c.shows(t, "1 of 100,000")
	t.Logf("three pages of 100,000 rules in %v", time.Since(began))
	c.quiet(t)
}

// Names that clients and authors of rules choose are shown as text, even if they look like HTML. Long ones are cut, and
// invisible characters seen.
func TestConsoleHostileNames(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	evil := []string{"<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\x1b[31mred\x1b[0m", "a\u202egpj.exe", long, "javascript:alert(3)"}
	var rules strings.Builder
	rules.WriteString("domain: \"<b>shop</b>\"\ndescriptors:\n  - {key: any, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	for _, name := range evil {
		fmt.Fprintf(&rules, "  - {key: %s, rate_limit: {unit: day, requests_per_unit: 1}}\n", quoted(name))
	}
	c := openConsole(t, map[string]string{"shop.yaml": rules.String()})
	for _, name := range evil {
		for _, key := range []string{"any", name} {
			if code := c.hits(t, "<b>shop</b>", 5, key, name); code != http.StatusTooManyRequests {
				t.Fatalf("%.80s: %d", name, code)
			}
		}
	}
	harmless := func(where string) {
		t.Helper()
		for _, width := range []int64{1240, 390} {
			c.Resize(t, width, 760)
			c.fits(t, where, width)
		}
		if n := browser.Ask[int](t, c.Browser, `document.querySelectorAll("img, b b, main script, a[href^=javascript]").length`); n > 0 {
			t.Errorf("%s: %d elements of a name", where, n)
		}
		if text := c.text(t); strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, strings.Repeat("x", 5000)) {
			t.Errorf("%s: a name is shown as it is", where)
		}
	}
	c.page(t, "#/now", "Customers that are denied")
	c.shows(t, "<img src=x")
	c.shows(t, "‹U+202E›gpj")
	harmless("now")
	c.page(t, "#/rules", "␛[31mred")
	harmless("rules")
	for _, name := range evil {
		query := url.Values{"domain": {"<b>shop</b>"}, "k": {name}, "v": {name}}.Encode()
		c.page(t, "#/customer?"+query, "Denied by 2 of 2 limits.")
		harmless("customer")
		c.page(t, "#/try?"+query, "It matches")
		harmless("try")
	}
	c.quiet(t)
}

// quoted is a value as JSON, which YAML reads too.
func quoted(v any) string {
	text, _ := json.Marshal(v) // cannot fail: v has only strings
	return string(text)
}

// lookForBarriers lists the violations that axe-core finds.
const lookForBarriers = `axe.run(document, { resultTypes: ["violations"] }).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html.slice(0, 200) + " " + n.failureSummary)))`

// save writes a picture of the documentation, with few colours so that it is small.
func save(t *testing.T, name string, picture []byte) {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	small := image.NewPaletted(full.Bounds(), colorsOf(full))
	draw.Draw(small, small.Bounds(), full, image.Point{}, draw.Src)
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "docs", "images", name), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// colorsOf returns the most used colours of a picture.
func colorsOf(p image.Image) color.Palette {
	used := make(map[color.RGBA]int)
	for y := p.Bounds().Min.Y; y < p.Bounds().Max.Y; y++ {
		for x := p.Bounds().Min.X; x < p.Bounds().Max.X; x++ {
			r, g, b, _ := p.At(x, y).RGBA()
			used[color.RGBA{uint8(r>>8) &^ 3, uint8(g>>8) &^ 3, uint8(b>>8) &^ 3, 255}]++
		}
	}
	all := slices.SortedFunc(maps.Keys(used), func(a, b color.RGBA) int { return used[b] - used[a] })
	var colors color.Palette
	for _, c := range all[:min(len(all), 250)] {
		colors = append(colors, c)
	}
	return colors
}
