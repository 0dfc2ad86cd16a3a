package browser_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

const regionRules = `domain: shop
descriptors:
  - {key: customer, rate_limit: {unit: day, requests_per_unit: 100000, regions: {home: eu}}}
  - {key: partner, rate_limit: {unit: day, requests_per_unit: 5000, regions: {home: us}}}
  - {key: login, rate_limit: {unit: minute, requests_per_unit: 5, regions: {home: hash}}}
`

// The page of regions shows which regions are down and why, how far away they are, and whose rules differ. Without
// regions, the navigation does not have the page.
func TestConsoleRegions(t *testing.T) {
	b := browser.Open(t)
	tree, errs := config.Compile([]config.File{{Name: "shop.yaml", Data: []byte(regionRules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	open := func(status func() regions.Status) *console {
		t.Helper()
		s, err := operator.New(operator.Options{Addr: "127.0.0.1:0", Rules: operator.Rules{Tree: l.Tree}, Counters: l, Decisions: l, Regions: operator.Regions{Status: status}})
		if err != nil {
			t.Fatal(err)
		}
		servicetest.Serve(t, s.Run)
		c := &console{Browser: b}
		c.Origin = "http://" + s.DebugAddr.String()
		return c
	}
	now := time.Now()
	var hostile atomic.Bool
	c := open(func() regions.Status {
		text := ""
		if hostile.Load() {
			text = "<img src=x onerror=document.body.remove()>\x1b[31m\u202egpj"
		}
		return regions.Status{
			Region: "eu", Waited: 2212, Unanswered: 13,
			Peers: []regions.PeerStatus{
				{Region: "ap", Heard: now.Add(-4 * time.Minute), Asked: now.Add(-4 * time.Minute), RTT: 102 * time.Millisecond, Rules: regions.RulesSame, Err: errors.New("ask the region ap: deadline exceeded" + text)},
				{
					Region: "us", Heard: now.Add(-time.Second), Asked: now, RTT: 81 * time.Millisecond, Rules: regions.RulesDiffer,
					Rejection: regions.PeerRejection{At: now.Add(-12 * time.Second), Why: regions.NoRule, Domain: "shop", Keys: []string{"customer", "path" + text}},
				},
			},
		}
	})
	c.Visit(t, c.Origin+"/console/#/now", "h1")
	c.until(t, `document.querySelector("nav").innerText.includes("Regions")`)
	c.page(t, "#/regions", "Homes of limits in the rules")
	for _, text := range []string{
		"by hash 1, eu 1, us 1", "2,212", "13 on_error decided them", "down: ask the region ap: deadline exceeded", "81.0 ms", "same", "differ", "It did not count a query about shop customer",
	} {
		c.shows(t, text)
	}
	for _, view := range views(1240, 760) {
		view.show(t, b)
		c.fits(t, "regions-"+view.name, view.width)
		c.accessible(t, "regions, "+view.name)
		if *update && view.name == "wide" {
			save(t, "console-regions.png", c.Picture(t, view.width, view.height))
		}
	}
	hostile.Store(true)
	c.until(t, `document.querySelector("main").innerText.split("<img src=x").length === 3`)
	if n := browser.Ask[int](t, b, `document.querySelectorAll("main img").length`); n > 0 || strings.ContainsAny(c.text(t), "\x1b\u202e") {
		t.Errorf("%d elements of a name:\n%s", n, c.text(t))
	}
	c.quiet(t)

	c = open(nil)
	c.Visit(t, c.Origin+"/console/#/now", "h1")
	c.shows(t, "live")
	c.until(t, `!document.querySelector("nav").innerText.includes("Regions")`)
	c.page(t, "#/regions", "This replica is in no region")
	c.quiet(t)
}
