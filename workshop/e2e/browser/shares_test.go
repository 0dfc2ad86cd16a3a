package browser_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/operator/bearer"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

// heldShares are the quota buckets of a domain.
type heldShares []assigner.BucketShares

func (h heldShares) Shares(_ time.Time, domain string, where []descriptor.Entry, n int) (all []assigner.BucketShares, matching, total int) {
	if domain != "shop" {
		return nil, 0, 0
	}
	all = slices.DeleteFunc(slices.Clone(h), func(b assigner.BucketShares) bool {
		return slices.ContainsFunc(where, func(e descriptor.Entry) bool { return !slices.Contains(b.Entries, e) })
	})
	return all[:min(n, len(all))], len(all), len(h)
}

func (h heldShares) Buckets() int { return len(h) }

// bucketsOf returns buckets as a busy replica has them: one with many clients, one whose names look like HTML, and many
// small ones.
func bucketsOf(now time.Time) heldShares {
	held := func(client string, perSecond float64) assigner.HeldShare {
		return assigner.HeldShare{
			Client: client, Since: now.Add(-7 * time.Minute), Demand: perSecond / 1.2, Expires: now.Add(20 * time.Second),
			Assignment: quota.Assignment{Kind: quota.Tokens, TTL: 30 * time.Second, MaxTokens: uint32(2 * perSecond), Fill: uint32(10 * perSecond), Interval: 10 * time.Second},
		}
	}
	gold := assigner.BucketShares{
		Domain: "shop", Entries: []descriptor.Entry{{Key: "plan", Value: "gold"}, {Key: "tenant", Value: "acme"}}, Rule: "shop.plan_gold.tenant", Limit: "1000 per second, token bucket, burst 2000",
		Rate: quota.Rate{PerSecond: 1000, Burst: 2000, Interval: 10 * time.Second}, ReplicaRate: 620, ReplicaBurst: 1240, Replicas: 2,
		Held: []assigner.HeldShare{held("10.4.0.17:40112", 310), held("10.4.0.23:51930", 140), held("10.4.1.9:44008", 90), held("[2001:db8:4::77]:38990", 40)},
	}
	for i := range 9 {
		gold.Held = append(gold.Held, held(fmt.Sprintf("10.4.2.%d:40000", i), 4))
	}
	gold.Held = append(gold.Held, assigner.HeldShare{Client: "10.4.9.1:45001", Since: now, Demand: 0.01, Assignment: quota.Assignment{Kind: quota.DenyAll, TTL: 30 * time.Second}, Expires: now.Add(30 * time.Second)})
	evil := assigner.BucketShares{
		Domain: "shop", Entries: []descriptor.Entry{{Key: "tenant", Value: "<img src=x onerror=document.body.remove()>\x1b[31m\u202egpj"}},
		Held: []assigner.HeldShare{{Client: "<b>client</b>", Since: now, Demand: 3, Assignment: quota.Assignment{Kind: quota.AllowAll, TTL: 30 * time.Second}, Expires: now.Add(30 * time.Second)}},
	}
	all := heldShares{gold}
	for i := range 31 {
		all = append(all, assigner.BucketShares{
			Domain: "shop", Entries: []descriptor.Entry{{Key: "plan", Value: "gold"}, {Key: "tenant", Value: fmt.Sprint("t", i)}}, Rule: "shop.plan_gold.tenant", Limit: "5 per day", Replicas: 1,
			Rate: quota.Rate{PerSecond: 5.0 / 86400, Burst: 5, Interval: 100 * time.Hour}, ReplicaRate: 5.0 / 86400, ReplicaBurst: 5,
			Held: []assigner.HeldShare{{Client: "10.4.0.17:40112", Since: now, Assignment: quota.Assignment{Kind: quota.Tokens, MaxTokens: 5, Fill: 20, Interval: 345600 * time.Second}, Expires: now.Add(time.Hour)}},
		})
	}
	all[2] = evil
	return all
}

// The page of shares lists the Envoys that hold a share of each bucket, and finds buckets by their entries. Names are
// shown as text, even if they look like HTML.
func TestConsoleShares(t *testing.T) {
	b := browser.Open(t)
	tokens := t.TempDir() + "/tokens"
	if err := os.WriteFile(tokens, []byte("ana read "+consoleToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	owners, err := bearer.New(bearer.Options{Name: "tokens", File: tokens})
	if err != nil {
		t.Fatal(err)
	}
	tree, errs := config.Compile([]config.File{{Name: "shop.yaml", Data: []byte(consoleRules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	s, err := operator.New(operator.Options{
		Addr: "127.0.0.1:0", Access: operator.Access{Tokens: owners}, Rules: operator.Rules{Tree: l.Tree}, Counters: l, Decisions: l, Shares: bucketsOf(time.Now()), Host: "edge-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	servicetest.Serve(t, s.Run)
	c := &console{Browser: b}
	c.Origin = "http://" + s.DebugAddr.String()
	c.Visit(t, c.Origin+"/console/#/shares", "h1")
	c.giveToken(t)
	// the only domain needs no choice
	c.shows(t, "20 of 32 buckets, those with most demand first, with the clients of edge-1 only.")
	c.shows(t, "The clients hold 616/s, burst 1,232, of 1,000/s, burst 2,000. 2 replicas share the limit; this one has 620/s, burst 1,240.")
	c.until(t, `document.querySelector('[role="img"][aria-label="31.0 % of the limit"] rect').getAttribute("width") === "31"`)
	for _, text := range []string{"5/day", "everything", "no rule matches", "Demand of 1 client: 3.0/s"} {
		c.shows(t, text)
	}
	if n := browser.Ask[int](t, b, `document.querySelectorAll("main img, main b").length`); n > 0 || strings.ContainsAny(c.text(t), "\x1b\u202e") {
		t.Errorf("%d elements of a name:\n%s", n, c.text(t))
	}
	for _, view := range views(1240, 760) {
		view.show(t, b)
		c.fits(t, "shares-"+view.name, view.width)
		c.accessible(t, "shares, "+view.name)
		if *update && view.name == "wide" {
			save(t, "console-shares.png", c.Picture(t, view.width, view.height))
		}
	}
	c.push(t, "Show more of 14")
	c.shows(t, "nothing")
	c.Click(t, "input[name=entries]")
	c.Type(t, "tenant=t7\r")
	c.shows(t, "1 of 32 buckets")
	c.until(t, `location.hash === "#/shares?domain=shop&k=tenant&v=t7"`)
	c.page(t, "#/now", "Decisions")
	c.until(t, `document.querySelector("nav").innerText.includes("Shares")`)
	c.page(t, "#/shares?domain=other", "There are no rules for this domain.")
	c.quiet(t)
}
