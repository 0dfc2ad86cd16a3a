package browser_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

// With many overrides, the console shows them in pages, finds the last one, and changes it.
func TestConsoleWithManyOverrides(t *testing.T) { manyOverrides(t, 1100, "1,100") }

// The same with as many as there can be: more than one answer of the API looks at.
func TestSoakConsoleWithMillionOverrides(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN: it takes a minute; make soak runs it")
	}
	manyOverrides(t, override.MaxOverrides, "1,000,000")
}

func manyOverrides(t *testing.T, n int, shown string) {
	redis := redistest.Start(t)
	client, err := redisconn.Dial(redisconn.Options{URL: redis.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	source := redissource.New(redissource.Options{Client: client, Log: slog.New(slog.DiscardHandler)})
	tenant := func(i int) string { return fmt.Sprintf("customer-%07d", i) }
	began := time.Now()
	for from := 0; from < n; from += override.MaxEdits {
		edits := make([]override.Edit, min(override.MaxEdits, n-from))
		for i := range edits {
			edits[i].Identity = override.Identity{Domain: "shop", Rule: "shop.tenant", Entries: []descriptor.Entry{{Key: "tenant", Value: tenant(from + i)}}}
			edits[i].Numbers = override.Numbers{Kind: override.Replace, Requests: 77}
		}
		if _, err := source.Write(t.Context(), "ann", edits); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d overrides written in %v", n, time.Since(began))

	c := openConsole(t, slowRules, "RATELIMITD_OVERRIDES=redis", "REDIS_URL="+redis.Addr)
	const rows = `[...document.querySelectorAll("section")].find(s => s.innerText.startsWith("Overrides")).querySelectorAll("tbody tr").length`
	step := func(what string) {
		t.Helper()
		t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	began = time.Now()
	c.page(t, "#/overrides", shown+" in this replica")
	step("all in force")
	c.until(t, rows+" === 100")
	c.push(t, "Next")
	c.shows(t, "page 2")
	c.shows(t, tenant(100))
	c.until(t, rows+" === 100")
	step("the second page")
	if most := browser.Ask[float64](t, c.Browser, `Math.max(...performance.getEntriesByType("resource").filter(r => r.name.endsWith("OverrideService/List")).map(r => r.encodedBodySize))`); most > 100<<10 {
		t.Errorf("a page of overrides has %v bytes", most)
	}
	search := func(text string) {
		t.Helper()
		browser.Ask[bool](t, c.Browser, fmt.Sprintf(`(() => { const e = document.querySelector("input[name=where]"); e.value = %q; e.dispatchEvent(new Event("input", { bubbles: true })); return true; })()`, text))
		c.push(t, "Find")
	}
	last := tenant(n - 1)
	search("tenant=" + last)
	c.until(t, rows+" === 1")
	c.shows(t, "tenant="+last)
	step("the last one found")
	search("tenant=nobody")
	c.shows(t, "There is no such override.")
	step("nobody found")

	c.page(t, "#/customer?domain=shop&k=tenant&v="+last, "77 per unit")
	step("the customer's own")
	c.Click(t, "input[name=number]")
	browser.Ask[bool](t, c.Browser, `document.activeElement.select(), true`)
	c.Type(t, "78")
	c.push(t, "Change override")
	c.shows(t, "78 per unit")
	step("changed")
	c.accessible(t, "a customer with an override")
	c.quiet(t)
}
