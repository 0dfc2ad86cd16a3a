package limiter

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var printWalk = flag.Bool("walk", false, "print the walk of docs/contributing/decision.md instead of comparing it")

const walkPage = "../../docs/contributing/decision.md"

// walk records the state of a request after each stage.
type walk struct {
	strings.Builder
	work *work
}

// line adds a line.
func (o *walk) line(format string, args ...any) { fmt.Fprintf(o, format+"\n", args...) }

func joined(entries []descriptor.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Key+"="+e.Value)
	}
	return strings.Join(all, " ")
}

func (s chargeState) String() string {
	if s == 0 {
		return "enforced"
	}
	var all []string
	for bit, name := range []string{"inactive", "replaced", "lifted", "beside", "unenforced"} {
		if s>>bit&1 != 0 {
			all = append(all, name)
		}
	}
	return strings.Join(all, "+")
}

func (o *walk) matched() {
	for i := range o.work.subjects {
		s := &o.work.subjects[i]
		o.line("subject %d  rule %-11s hits %-2d sent %s", i, s.matched.Path, s.hits, joined(s.sent))
	}
}

func (o *walk) applied() {
	for i := range o.work.subjects {
		s := &o.work.subjects[i]
		by := [...]string{"rule", "request", "override", "block", "lift"}[s.by]
		reservation := "no reservation"
		if s.reservation != nil {
			reservation = "reserves"
		}
		o.line("subject %d  by %s, %s", i, by, reservation)
		for j := s.first; j < s.end; j++ {
			c := &o.work.charges[j]
			o.line("  charge %d  %-6s %d per %s, %s", j, c.limit.Name, c.limit.Requests, c.limit.Window.Unit, c.state)
		}
	}
}

func (o *walk) charged() {
	o.line("request    together %v", o.work.request.Together)
	for i := range o.work.request.Takes {
		t := &o.work.request.Takes[i]
		what := ""
		if t.Guards {
			what = "  guards the next"
		} else if t.Reservation != nil {
			what = "  reserves"
		}
		o.line("  take %d    %-26s hits %-2d member %d%s", i, t.Key, t.Hits, t.Member, what)
	}
	for j := range o.work.charges {
		c := &o.work.charges[j]
		guard := ""
		if c.guard != none {
			guard = fmt.Sprintf(", guard %d", c.guard)
		}
		o.line("  charge %d  take %d%s", j, c.take, guard)
	}
}

func (o *walk) settled() {
	for i := range o.work.request.Outcomes {
		out := &o.work.request.Outcomes[i]
		o.line("  take %d    allowed %-5v used %-2d reset %s", i, out.Allowed, out.Used, out.ResetAfter)
	}
}

func (o *walk) judged(d *Decision) {
	o.line("decision   %s", d.Code)
	for i := range d.Statuses {
		st := &d.Statuses[i]
		o.line("  status %d  %s, %s: %d of %d left, reset %s", i, st.Code, st.Limit.Name, st.Remaining, st.Limit.Requests, st.Reset)
	}
}

// The page matches the code: the code has these values, stage by stage.
func TestWalk(t *testing.T) {
	page, err := os.ReadFile(walkPage)
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(page), "```yaml\n")
	rules, _, _ = strings.Cut(rules, "```")
	tree, errs := config.Compile([]config.File{{Name: "shop.yaml", Data: []byte(rules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs[0])
	}
	l := New(Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, Settings{})
	l.SetOverrides((&override.Set{}).With(1, []override.Change{{
		Identity: override.Identity{Domain: "shop", Rule: "shop.login", Entries: []descriptor.Entry{{Key: "login", Value: "ann"}}},
		Numbers:  override.Numbers{Kind: override.Replace, Requests: 20},
	}}))
	now := time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC)
	req := &Request{Domain: "shop", Descriptors: []Descriptor{
		{Entries: []descriptor.Entry{{Key: "ip", Value: "192.0.2.7"}}},
		{Entries: []descriptor.Entry{{Key: "login", Value: "ann"}}},
		{Entries: []descriptor.Entry{{Key: "tenant", Value: "acme"}, {Key: descriptor.ReserveID, Value: "r-17"}}, Hits: 40, HasHits: true},
	}}
	w := l.workOn(question{req: req, snap: l.snapshot.Load(), domain: tree.Domain("shop"), now: now})
	stages := []func(o *walk, d *Decision){
		func(o *walk, _ *Decision) {
			if err := w.findCharges(t.Context()); err != nil {
				t.Fatal(err)
			}
			o.matched()
		},
		func(o *walk, _ *Decision) {
			if err := w.applyAmounts(); err != nil {
				t.Fatal(err)
			}
			o.applied()
		},
		func(o *walk, _ *Decision) { w.charge(); o.charged() },
		func(o *walk, _ *Decision) {
			if err := backend.Await(t.Context(), l.parts.Store, now, &w.request); err != nil {
				t.Fatal(err)
			}
			o.settled()
		},
		func(o *walk, d *Decision) { w.judge(d); o.judged(d) },
	}
	rest, d := string(page), &Decision{}
	for i, stage := range stages {
		o := &walk{work: w}
		stage(o, d)
		if *printWalk {
			fmt.Printf("```text\n%s```\n\n", o)
			continue
		}
		before, after, found := strings.Cut(rest, "```text\n"+o.String()+"```\n")
		if !found || strings.Contains(before, "```text") {
			t.Fatalf("stage %d: %s does not have\n%s\n(go test ./internal/limiter -run Walk -walk prints all)", i+1, walkPage, o)
		}
		rest = after
	}
}
