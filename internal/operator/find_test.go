package operator

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// findings is a server with counters of several customers: each got one request more than its limit of one.
func findings(t *testing.T, access Access) *running {
	t.Helper()
	rule := func(settings descriptor.RuleSettings) *descriptor.Rule {
		return &descriptor.Rule{RuleSettings: settings, Limits: []descriptor.Limit{{Requests: 1, Window: descriptor.Window{Unit: descriptor.Year}}}}
	}
	deny := descriptor.RuleSettings{OnError: descriptor.OnErrorDeny}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "tenant", Rule: rule(deny), Children: []descriptor.NodeSpec{
			{Key: "path", Value: "/search*", Rule: rule(descriptor.RuleSettings{Usage: true})},
			{Key: "user", Rule: rule(descriptor.RuleSettings{})},
		}},
		{Key: "method", Value: "POST", Rule: rule(descriptor.RuleSettings{Shadow: true}), Children: []descriptor.NodeSpec{{Key: "tenant", Rule: rule(descriptor.RuleSettings{})}}},
		{Key: "ip", Group: descriptor.Group{V6: 64}, Rule: rule(descriptor.RuleSettings{})},
	}}, {Name: "e", Children: []descriptor.NodeSpec{{Key: "name", FoldCase: true, Rule: rule(descriptor.RuleSettings{})}}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index, hot := usage.New(usage.Options{Store: new(usage.Memory)}), hotkeys.New(time.Now(), hotkeys.Options{})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index, HotKeys: hot})
	l.Swap(tree, limiter.Settings{})
	for _, text := range []string{
		"d tenant=acme", "d tenant=acme path=/search/a", "d tenant=acme user=bob", "d tenant=globex", "d method=POST", "d method=POST tenant=acme",
		"d ip=2001:db8::1", "e name=ACME",
	} {
		words := strings.Fields(text)
		var entries []descriptor.Entry
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			entries = append(entries, descriptor.Entry{Key: key, Value: value})
		}
		for range 2 {
			if err := l.Decide(t.Context(), time.Now(), &limiter.Request{Domain: words[0], Descriptors: []limiter.Descriptor{{Entries: entries}}}, &limiter.Decision{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	index.Flush(t.Context(), time.Now())
	return start(t, Options{
		Usage: index, Counters: l, Rules: Rules{Tree: l.Tree, Explain: l.Explain}, Access: access,
		HotKeys: func(q hotkeys.Query) hotkeys.Report { return hot.Top(time.Now(), q) },
	})
}

func searched(t *testing.T, r *running, query string) (int, string) {
	t.Helper()
	code, _, body := send(t, http.DefaultClient, http.MethodPost, "http://"+r.DebugAddr.String()+findPath,
		map[string]string{"Authorization": "Bearer " + annsToken, "Content-Type": "application/x-www-form-urlencoded"}, strings.NewReader(query))
	return code, body
}

func find(t *testing.T, r *running, query string) (page foundPage) {
	t.Helper()
	code, body := searched(t, r, query)
	if err := json.Unmarshal([]byte(body), &page); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %v %.300s", query, code, err, body)
	}
	return page
}

// summaries are the found descriptors, with ! before those that deny and ? after those that were not used.
func summaries(p *foundPage) (all []string) {
	for _, f := range p.Found {
		text := f.Domain
		for _, e := range f.Entries {
			text += " " + e.Key + "=" + e.Value
		}
		if slices.Contains(f.Denies, true) {
			text = "!" + text
		}
		if !slices.ContainsFunc(f.Hot, func(h *hotCounter) bool { return h != nil && h.Used == [2]uint64{2, 2} }) {
			text += "?"
		}
		all = append(all, text)
	}
	return all
}

// A search by a value finds all counters that have it, of all rules and domains, and no others; one by a descriptor
// finds those of its customer.
func TestFind(t *testing.T) {
	r := findings(t, Access{Tokens: owners{annsToken: "ann read"}})
	acme := []string{"!d method=POST tenant=acme", "!d tenant=acme", "!d tenant=acme path=/search/a", "!d tenant=acme user=bob"}
	for query, want := range map[string][]string{
		"value=acme":          append([]string{"!e name=acme", "d ip=acme?"}, acme...),
		"value=acme&domain=d": append([]string{"d ip=acme?"}, acme...),
		"value=acme&domain=e": {"!e name=acme"},
		"value=acm":           {"d ip=acm?", "d method=POST tenant=acm?", "d tenant=acm?", "e name=acm?"},
		"value=2001:db8::2":   {"!d ip=2001:db8::", "d method=POST tenant=2001:db8::2?", "d tenant=2001:db8::2?", "e name=2001:db8::2?"},
		"value=bob":           {"!d tenant=acme user=bob", "d ip=bob?", "d method=POST tenant=bob?", "d tenant=bob?", "e name=bob?"},

		"domain=d&k=tenant&v=acme":                        append([]string{"d ip=acme?"}, acme...),
		"domain=d&k=tenant&v=acme&k=path&v=/search/other": append([]string{"d tenant=acme path=/search/other?", "d ip=acme?"}, acme...),
		"domain=d&k=method&v=POST":                        {"d method=POST"}, // a rule in shadow mode, and not a customer
		"domain=d&k=nothing&v=acme":                       {"d nothing=acme?"},
		"domain=none&k=tenant&v=acme":                     {"none tenant=acme?"},
	} {
		p := find(t, r, query)
		got := summaries(&p)
		if self := strings.Contains(query, "k="); self != (len(p.Found) > 0 && p.Found[0].Self) {
			t.Errorf("%s: the first is %+v", query, p.Found[0])
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	p := find(t, r, "domain=d&k=tenant&v=globex")
	if f := p.Found[0]; f.OnError != "deny" || f.Shadow || f.Blocked || !strings.Contains(string(f.Peek), `"requestsPerUnit"`) || !slices.Equal(p.Values, []string{"globex"}) {
		t.Errorf("%+v of %q", f, p.Values)
	}
	for _, query := range []string{"", "value=", "k=tenant&v=acme", "value=" + strings.Repeat("x", 70<<10)} {
		if code, body := searched(t, r, query); code != http.StatusBadRequest {
			t.Errorf("%.30s: %d %s", query, code, body)
		}
	}
}

// Where nobody has a name, a search shows rules and no counters.
func TestFindWithoutNames(t *testing.T) {
	r := findings(t, Access{})
	p := find(t, r, "value="+url.QueryEscape("acme"))
	if got := summaries(&p); p.Hidden != namelessOff || slices.Contains(got, "!d tenant=acme") || !slices.Contains(got, "d tenant=acme?") {
		t.Errorf("%q %q", p.Hidden, got)
	}
}

// The stream of events contains the operator's role. A browser that opens it before it has a token leaves no line in
// the log, and one with a wrong token does.
func TestEventsSayTheRole(t *testing.T) {
	tokens := owners{annsToken: "ann", bobsToken: "bob read"}
	for _, c := range []struct {
		access      Access
		token, role string
	}{{Access{Tokens: tokens}, annsToken, roleOperate}, {Access{Tokens: tokens}, bobsToken, roleRead}, {Access{}, "", roleRead}, {Access{Tokens: tokens}, "", ""}, {Access{Tokens: tokens}, "wrong", ""}} {
		r := start(t, Options{Counters: counted(t), Access: c.access})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.DebugAddr.String()+eventsPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Ratelimitd-Role"); got != c.role {
			t.Errorf("the token %q has the role %q, want %q", c.token, got, c.role)
		}
		if logged := len(r.log.With("operator denied")) > 0; logged != (c.token == "wrong") {
			t.Errorf("with the token %q the log has a line: %v", c.token, logged)
		}
	}
}
