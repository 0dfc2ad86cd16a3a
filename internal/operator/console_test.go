package operator

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// readPage is a rulePage as a browser reads it.
type readPage struct {
	Total, Matched, Next int
	Rules                []oneRule
	size                 int
}

// ruleCounters is rules with counters that a test sets.
type ruleCounters struct {
	tree *descriptor.Tree
	hits map[string]limiter.RuleTotals // totals by path
}

func (c *ruleCounters) RuleTotals() (*descriptor.Tree, func(index int) *limiter.RuleTotals) {
	return c.tree, func(i int) *limiter.RuleTotals {
		t, ok := c.hits[c.tree.Rules[i].Path]
		if !ok {
			return nil
		}
		return &t
	}
}

func (*ruleCounters) Totals() (t limiter.Totals) { return t }

// treeOf has a rule for each value of the key k.
func treeOf(t *testing.T, values ...string) *descriptor.Tree {
	t.Helper()
	spec := descriptor.DomainSpec{Name: "d"}
	for _, value := range values {
		rule := &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}}}
		spec.Children = append(spec.Children, descriptor.NodeSpec{Key: "k", Value: value, Rule: rule})
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{spec}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func readRules(t *testing.T, s *running, query string) (p readPage) {
	t.Helper()
	code, body := get(t, s.DebugAddr, "/console/rules?"+query)
	if err := json.Unmarshal([]byte(body), &p); err != nil || code != http.StatusOK {
		t.Fatalf("%d %v %.200s", code, err, body)
	}
	p.size = len(body)
	return p
}

func compiled(t *testing.T, n int) *descriptor.Tree {
	t.Helper()
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("<b>%d", i)
	}
	return treeOf(t, values...)
}

// The console's pages of rules hold every rule once, for pages of any size.
func TestConsoleRules(t *testing.T) {
	tree := compiled(t, 1234)
	s := start(t, Options{Rules: Rules{Tree: func() *descriptor.Tree { return tree }}})
	seen := make(map[string]bool)
	page := func(query string) readPage { return readRules(t, s, query) }
	for from := 0; ; {
		p := page(fmt.Sprintf("limit=500&from=%d", from))
		if p.Total != 1234 || p.Matched != 1234 || len(p.Rules) > 500 {
			t.Fatalf("%d rules of %d, %d matched", len(p.Rules), p.Total, p.Matched)
		}
		for _, r := range p.Rules {
			seen[r.Path] = true
		}
		if from = p.Next; from == 0 {
			break
		}
	}
	if len(seen) != 1234 {
		t.Errorf("%d rules", len(seen))
	}
	if p := page("find=B%3E77"); p.Matched != 11 || p.Rules[0].Levels[0] != (oneLevel{"k", "<b>77", true}) || p.Rules[0].Limits[0] != ([2]string{"", "5 per minute, fixed window"}) {
		t.Errorf("%+v", p)
	}
	if p := page("domain=d&limit=1"); p.Matched != 1234 {
		t.Errorf("%d rules of their domain", p.Matched)
	}
	if p := page("domain=other"); p.Matched != 0 {
		t.Errorf("%d rules of another domain", p.Matched)
	}
	if p := page("limit=99999999&from=-5"); len(p.Rules) != maxRulePage {
		t.Errorf("a page of %d", len(p.Rules))
	}
	if p := page("denied=1"); p.Matched != 0 || p.Rules == nil {
		t.Errorf("%+v", p)
	}
}

// A page of rules shows the totals of each rule, and can be limited to rules that denied something.
func TestConsoleRulesSayWhatTheyDid(t *testing.T) {
	c := &ruleCounters{tree: compiled(t, 20), hits: map[string]limiter.RuleTotals{"d.k_<b>3": {Hits: 10, Denied: 4}, "d.k_<b>4": {Hits: 1}}}
	s := start(t, Options{Decisions: c})
	p := readRules(t, s, "")
	if got := p.Rules[3]; got.Totals == nil || *got.Totals != c.hits["d.k_<b>3"] {
		t.Errorf("%+v", got)
	}
	if got := p.Rules[5]; got.Totals != nil {
		t.Errorf("%+v", got)
	}
	if p := readRules(t, s, "denied=1"); p.Matched != 1 || p.Rules[0].Path != "d.k_<b>3" {
		t.Errorf("%+v", p)
	}
}

// Long names do not make a page or an event long, and still every rule is on a page.
func TestConsoleWithLongNames(t *testing.T) {
	long := strings.Repeat("<\x00\xff", maxShown)
	var domains []descriptor.DomainSpec
	for i := range 600 {
		rule := &descriptor.Rule{Name: long, Limits: []descriptor.Limit{{Name: long, Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}}}
		node := descriptor.NodeSpec{Key: long, Value: long, Rule: rule}
		for range 4 {
			node = descriptor.NodeSpec{Key: long, Value: long, Children: []descriptor.NodeSpec{node}}
		}
		domains = append(domains, descriptor.DomainSpec{Name: fmt.Sprintf("%s%d", long[:500], i), Children: []descriptor.NodeSpec{node}})
	}
	tree, err := descriptor.Compile(domains, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{Rules: Rules{Tree: func() *descriptor.Tree { return tree }}})
	seen, pages := 0, 0
	for from := 0; pages == 0 || from > 0; pages++ {
		p := readRules(t, s, fmt.Sprintf("limit=500&from=%d", from))
		if p.size > maxRulePageBytes+100<<10 {
			t.Errorf("a page has %d bytes", p.size)
		}
		seen += len(p.Rules)
		from = p.Next
	}
	if seen != len(domains) || pages < 3 {
		t.Errorf("%d of %d rules on %d pages", seen, len(domains), pages)
	}
	answer, err := http.Get("http://" + s.DebugAddr.String() + "/console/events")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil || len(line) < maxDomainBytes || len(line) > 6*maxDomainBytes+10<<10 { // a byte may be written as six
		t.Errorf("an event has %d bytes, %v", len(line), err)
	}
	if code, body := get(t, s.DebugAddr, "/console/rules?find="+strings.Repeat("x", maxFindBytes+1)); code != http.StatusBadRequest {
		t.Errorf("a long text to find: %d %s", code, body)
	}
}

// Files need no token, because a browser cannot send one before it has them; the data in the page needs one.
func TestConsoleNeedsToken(t *testing.T) {
	s := start(t, Options{Access: Access{Tokens: owners{"t": "ana"}}})
	for path, want := range map[string]int{
		"/console/": http.StatusOK, "/console": http.StatusUnauthorized, "/console/events": http.StatusUnauthorized, "/console/rules": http.StatusUnauthorized,
		"/console/nothing": http.StatusUnauthorized, "/console/../stats": http.StatusUnauthorized, "/rlconfig": http.StatusUnauthorized,
	} {
		if code, body := get(t, s.DebugAddr, path); code != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, _, body := request(t, http.MethodPost, s.DebugAddr, "/console/", strings.NewReader("")); code != http.StatusUnauthorized {
		t.Errorf("POST: %d %s", code, body)
	}
}

// An open stream of events does not hold up the end of the server.
func TestEventsEndWithServer(t *testing.T) {
	s := start(t, Options{})
	answer, err := http.Get("http://" + s.DebugAddr.String() + "/console/events")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	first := make([]byte, 6)
	if _, err := answer.Body.Read(first); err != nil || string(first) != "data: " || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%q %v %v", first, err, answer.Header)
	}
	s.stop()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	if cut := s.log.With("cut off"); len(cut) > 0 {
		t.Errorf("the log says %q", cut)
	}
}
