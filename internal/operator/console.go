package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/operator/console"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// Decisions are the numbers of decisions that the console shows.
type Decisions interface {
	Totals() limiter.Totals
	RuleTotals() (*descriptor.Tree, func(index int) *limiter.RuleTotals)
}

// Replica is the console's view of this replica. The texts are for people.
type Replica struct {
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Backend string    `json:"backend"` // where counters are
	Redis   []Redis   `json:"redis"`
	Caches  []Cache   `json:"caches"`

	Overrides *OverrideState `json:"overrides"` // nil if overrides are off
}

// Redis is the state of one Redis.
type Redis struct {
	Name        string  `json:"name"`
	Error       string  `json:"error"` // error of a ping; empty if it was answered
	Millis      float64 `json:"ms"`    // duration of the ping
	Connections uint64  `json:"connections"`
}

// Cache is the state of one of this replica's caches.
type Cache struct {
	Name    string `json:"name"`
	Entries uint64 `json:"entries"`
}

// OverrideState is this replica's state of the overrides.
type OverrideState struct {
	Count   int    `json:"count"`
	Version int64  `json:"version,string"`
	Error   string `json:"error"` // why the source is unreachable; empty if it is reachable
	File    bool   `json:"file"`  // the source is a file, which this replica only reads
}

// live is one event.
type live struct {
	At        int64           `json:"at"` // time in ms
	Replica   *Replica        `json:"replica"`
	Rules     liveRules       `json:"rules"`
	Decisions *limiter.Totals `json:"decisions"` // nil if unknown
	Hot       *liveHot        `json:"hot"`       // nil if hot keys are off
	Buckets   int             `json:"buckets"`   // quota buckets that clients of this replica use
	Regions   bool            `json:"regions"`   // this replica is in a region
	Fleet     bool            `json:"fleet"`     // the replicas that share its Redis are known
}

type liveRules struct {
	Loaded   bool     `json:"loaded"`
	Checksum string   `json:"checksum"` // a number that a double could not hold
	Rules    int      `json:"rules"`
	Domains  []string `json:"domains"` // some of them
	Files    int      `json:"files"`
	Stale    int      `json:"stale"`
	Rejected int      `json:"rejected"`
	Since    int64    `json:"since"` // time in ms; it changes whenever the state of a file does
}

type liveHot struct {
	Seconds float64    `json:"seconds"` // covered
	Denied  []liveKey  `json:"denied"`
	Used    []liveKey  `json:"used"`
	Rules   []liveRule `json:"rules"`
}

type liveKey struct {
	Key     string     `json:"key"`
	Domain  string     `json:"domain"`
	Rule    string     `json:"rule"`
	Entries []oneEntry `json:"entries"` // entries that the key names; may be empty
	Leads   bool       `json:"leads"`   // the entries lead to this counter
	Shadow  bool       `json:"shadow"`

	hotCounter
}

type liveRule struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Shadow bool   `json:"shadow"`
	Used   uint64 `json:"used"`
	Denied uint64 `json:"denied"`
}

const (
	maxLiveRows    = 15
	maxDomains     = 500
	maxDomainBytes = 16 << 10 // total size of the domains in an event
	maxShown       = 1024     // bytes of a name in an event
)

const eventsPath = console.Path + "events"

// addConsole adds the console to the pages.
func (s *Server) addConsole(mux *http.ServeMux, opts *Options) {
	s.events = console.NewEvents(opts.look)
	mux.HandleFunc("GET "+eventsPath, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Ratelimitd-Role", opts.Access.roleOf(r.Context()))
		s.events.ServeHTTP(w, r)
	})
	mux.Handle("GET "+console.Path+"rules", &rulePages{opts})
	mux.Handle("POST "+findPath, &finder{opts})
}

// look returns the next event.
func (o *Options) look(ctx context.Context) any {
	e := &live{At: time.Now().UnixMilli(), Rules: o.liveRules(), Regions: o.Regions.Status != nil, Fleet: o.Fleet != nil}
	if o.Replica != nil {
		e.Replica = o.Replica(ctx)
	}
	if o.Decisions != nil {
		t := o.Decisions.Totals()
		e.Decisions = &t
	}
	if o.Shares != nil {
		e.Buckets = o.Shares.Buckets()
	}
	e.Hot = hotOf(o.Rules.tree(), o.HotKeys(hotkeys.Query{Limit: maxLiveRows}))
	return e
}

func (o *Options) liveRules() liveRules {
	r := liveRules{Domains: []string{}}
	if o.Rules.Tree != nil {
		if tree := o.Rules.Tree(); tree != nil {
			r.Loaded, r.Rules, r.Checksum = true, len(tree.Rules), strconv.FormatUint(tree.Checksum, 10)
			r.Domains = someDomains(tree)
		}
	}
	if o.Rules.Files == nil {
		return r
	}
	for _, f := range o.Rules.Files() {
		r.Files++
		switch f.State {
		case descriptor.FileStale:
			r.Stale++
		case descriptor.FileRejected:
			r.Rejected++
		}
		r.Since = max(r.Since, f.Since.UnixMilli())
	}
	return r
}

// someDomains are names of domains, not more than an event has room for.
func someDomains(tree *descriptor.Tree) []string {
	names, size := []string{}, 0
	for d := range tree.EachDomain() {
		if len(names) == maxDomains || size > maxDomainBytes {
			break
		}
		if len(d.Name) <= maxShown {
			names = append(names, validText(d.Name))
			size += len(d.Name)
		}
	}
	return names
}

func hotOf(tree *descriptor.Tree, r hotkeys.Report) *liveHot {
	h := &liveHot{Seconds: r.To.Sub(r.From).Seconds(), Denied: liveKeys(tree, r.Denied), Used: liveKeys(tree, r.Used),
		Rules: []liveRule{}}
	for i := range r.Rules {
		if len(h.Rules) == maxLiveRows {
			break
		}
		rule := &r.Rules[i]
		h.Rules = append(h.Rules, liveRule{shown(rule.Domain), shown(rule.Rule), rule.Shadow, rule.HitsUsed, rule.HitsDenied})
	}
	return h
}

func liveKeys(tree *descriptor.Tree, keys []hotkeys.Key) []liveKey {
	all := make([]liveKey, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		rule, entries := entriesOf(tree, k)
		live := liveKey{
			Key: shown(k.Text), Domain: shown(k.Domain), Rule: shown(k.Rule), Leads: rule != nil, Shadow: k.Shadow,
			hotCounter: hotCounter{[2]uint64{k.Used.AtLeast, k.Used.AtMost}, [2]uint64{k.Denied.AtLeast, k.Denied.AtMost}},
		}
		for _, e := range entries {
			live.Entries = append(live.Entries, oneEntry{validText(e.Key), validText(e.Value)})
		}
		all = append(all, live)
	}
	return all
}

// shown is a name, without its end if it is long.
func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return validText(s)
}

// rulePages shows the active rules, page by page.
type rulePages struct{ *Options }

// rulePage is a page of the active rules.
type rulePage struct {
	Total   int               `json:"total"`
	Matched int               `json:"matched"`
	Rules   []json.RawMessage `json:"rules"` // each is a oneRule
	Next    int               `json:"next"`  // 0 on the last page
}

type oneRule struct {
	Domain string              `json:"domain"`
	Path   string              `json:"path"`
	Name   string              `json:"name"`
	Levels []oneLevel          `json:"levels"`
	Limits [][2]string         `json:"limits"` // the name, if it has several limits, and the limit in words
	Flags  []string            `json:"flags"`
	File   string              `json:"file"`
	Line   int                 `json:"line"`
	Column int                 `json:"column"`
	Totals *limiter.RuleTotals `json:"totals"` // nil if the names of its metrics depend on requests
}

type oneLevel struct {
	Key   string `json:"key"`
	Value string `json:"value"` // value as written in the rule file
	Exact bool   `json:"exact"` // whether the value is an exact one instead of a pattern
}

const (
	maxRulePage      = 500
	maxRulePageBytes = 1 << 20 // a rule that starts below this size may end above it
	maxFindBytes     = 1024
)

// ServeHTTP answers with a page of rules: from is the index to start at; find is a text that the path, the name or the
// file must contain; domain is a domain that must be the rule's; denied lists only rules that denied something; limit
// is the size of the page.
func (p *rulePages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	query := r.URL.Query()
	q := ruleQuery{find: strings.ToLower(query.Get("find")), domain: query.Get("domain"),
		denied: query.Get("denied") != ""}
	q.from, _ = strconv.Atoi(query.Get("from"))
	q.limit, _ = strconv.Atoi(query.Get("limit"))
	if q.limit <= 0 {
		q.limit = 100
	}
	q.limit = min(q.limit, maxRulePage)
	if len(q.find) > maxFindBytes {
		endpoint.WriteText(w, http.StatusBadRequest, fmt.Sprintf("find has more than %d bytes\n", maxFindBytes))
		return
	}
	page, err := p.page(&q)
	if err != nil {
		endpoint.WriteText(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	writeJSON(w, page)
}

func (p *rulePages) page(q *ruleQuery) (*rulePage, error) {
	page := &rulePage{Rules: []json.RawMessage{}}
	if p.Decisions == nil {
		return page, page.fill(q, p.Rules.tree(), func(int) *limiter.RuleTotals { return nil })
	}
	tree, totals := p.Decisions.RuleTotals()
	return page, page.fill(q, tree, totals)
}

// ruleQuery is a request for a page of rules.
type ruleQuery struct {
	from, limit int
	find        string // lower case
	domain      string // empty means all
	denied      bool   // only rules that denied something
}

// fill adds the rules of a tree that a query selects, with their totals since the replica started.
func (p *rulePage) fill(q *ruleQuery, tree *descriptor.Tree, totals func(index int) *limiter.RuleTotals) error {
	if tree == nil {
		return nil
	}
	p.Total = len(tree.Rules)
	size := 0
	for i, rule := range tree.Rules {
		did := totals(i)
		if !ruleMatches(rule, q.find) || q.domain != "" && q.domain != rule.Domain || q.denied &&
			(did == nil || did.Denied == 0) {
			continue
		}
		p.Matched++
		switch {
		case i < q.from || p.Next > 0:
		case len(p.Rules) == q.limit || size > maxRulePageBytes:
			p.Next = i
		default:
			row := ruleRow(rule)
			row.Totals = did
			text, err := json.Marshal(row)
			if err != nil {
				return fmt.Errorf("write rule as JSON: %w", err)
			}
			p.Rules = append(p.Rules, text)
			size += len(text)
		}
	}
	return nil
}

func ruleMatches(r *descriptor.Rule, find string) bool {
	return find == "" || strings.Contains(strings.ToLower(r.Path), find) ||
		strings.Contains(strings.ToLower(r.Name), find) ||
		strings.Contains(strings.ToLower(r.Position.File), find)
}

func ruleRow(r *descriptor.Rule) oneRule {
	row := oneRule{
		Domain: shown(r.Domain), Path: shown(r.Path), Name: shown(r.Name), Levels: []oneLevel{}, Limits: [][2]string{},
		Flags: []string{},
		File:  shown(r.Position.File), Line: r.Position.Line, Column: r.Position.Col,
	}
	for _, l := range r.Levels {
		row.Levels = append(row.Levels, oneLevel{shown(l.Key), shown(l.Value), l.Kind == descriptor.MatchExact &&
			shown(l.Value) == l.Value})
	}
	for i := range r.Limits {
		name := ""
		if len(r.Limits) > 1 {
			name = shown(r.Limits[i].Name)
		}
		row.Limits = append(row.Limits, [2]string{name, r.LimitWords(i)})
	}
	if r.Unlimited {
		row.Limits = append(row.Limits, [2]string{"", "unlimited"})
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{{r.Shadow, "shadow mode"}, {r.Quota, "quota mode"}, {r.Overridable(), "overridable"},
		{len(r.Replaces) > 0, "replaces " + shown(strings.Join(r.Replaces, ", "))}} {
		if flag.set {
			row.Flags = append(row.Flags, flag.name)
		}
	}
	if r.OnError != descriptor.OnErrorDefault {
		row.Flags = append(row.Flags, "on_error: "+descriptor.OnErrorNames[r.OnError])
	}
	return row
}

// writeJSON answers with JSON that no cache keeps.
func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		endpoint.WriteText(w, http.StatusInternalServerError, logging.Shorten(err.Error())+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text)
}
