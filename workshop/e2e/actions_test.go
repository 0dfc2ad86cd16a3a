package e2e

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	// shownRules are the rule files of a page: files that a reader writes, and examples.
	shownRules = regexp.MustCompile("(?s)```yaml\n((?:#[^\n]*\n)*domain: (\\w+)[^\n]*\n.*?)```\n")
	// shownActions are the rate_limits of Envoy for the rules of a domain.
	shownActions = regexp.MustCompile("(?s)<!-- envoy: (\\w+) -->\n```yaml\n(.*?)```\n")
)

// commentedActions are the rate_limits in the comment above the domain of a rule file.
var commentedActions = regexp.MustCompile(`(?m)^(# rate_limits:\n(?:# .*\n)+)domain: (\w+)$`)

// activeTimes is the key with the times at which a limit is active.
var activeTimes = regexp.MustCompile(`\bactive: \{[^{}]*\}`)

// shown is an example: rules, and the rate_limits of Envoy that the page shows with them.
type shown struct {
	where, domain, rules, limits string
}

// item is one item of rate_limits: the entries that Envoy sends, and when it sends them.
type item struct{ text string }

func (s shown) items() []item {
	var all []item
	for _, text := range strings.Split("\n"+s.limits, "\n- actions:")[1:] {
		all = append(all, item{"\n- actions:" + text})
	}
	return all
}

// ends reports whether Envoy sends the item when a request has ended.
func (i item) ends() bool { return strings.Contains(i.text, "apply_on_stream_done: true") }

// returns reports whether the item returns hits that another item charged at the start of the request.
func (i item) returns() bool {
	return i.ends() && (strings.Contains(i.text, "commit_id") || strings.Contains(i.text, "is_negative_hits: true"))
}

// entries are the actions of an item. A reservation and its end have the same actions.
func (i item) entries() string {
	entries, _, _ := strings.Cut(strings.ReplaceAll(i.text, "commit_id", "reserve_id")+"\n  hits_addend", "\n  hits_addend")
	entries, _, _ = strings.Cut(entries, "\n  apply_on_stream_done")
	return strings.TrimSpace(entries)
}

// walk calls a function with the path and the text of each file with this extension.
func walk(t *testing.T, dir, extension string, each func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != extension {
			return err
		}
		text, err := os.ReadFile(name)
		each(name, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// clients are the headers of the requests.
var clients = map[string]string{
	"Account": "acct_1", "Agent": "planner", "Api-Key": "k1", "App": "A1", "Bot": "b1", "Buyer": "ann", "Caller": "ann", "Channel": "C1", "Consumer": "c1", "Country": "de",
	"Customer": "acme", "Developer": "d1",
	"Email": "ann@example.com", "Endpoint": "GET /2/tweets/search/recent", "Exact-Set": "h1", "Files": "read", "Identifier": "example.com", "Importance": "critical",
	"Instance": "i-1", "Kind": "post", "Machine": "m1", "Mcp-Tool": "search", "Message-Type": "marketing", "Method": "users.info", "Mode": "live", "Model": "large", "New-Account-Address": "192.0.2.1",
	"New-Account-Network": "2001:db8:1::/48", "Oauth-Client": "o1", "Operation": "search", "Organization": "acme", "Payment-Intent": "pi_1", "Priority": "batch", "Project": "p1",
	"Region": "eu", "Registered-Domain": "example.com", "Seller": "s1", "Sender": "ACME", "Shop": "s1", "Store-Plan": "standard", "Subscriber": "ann", "Subscription": "sub_1",
	"Tenant": "acme", "Tier": "start", "To-Number": "2061234567", "Unlisted-Method": "conversations.history", "User": "bob", "User-Id": "ada", "Users": "57",
	"Volume": "vol-1", "Webhook": "B1", "Workspace": "T1",
}

// allShown returns the examples of pages and rule files. Each gets a separate domain, because pages may use a domain
// twice.
func allShown(t *testing.T) []shown {
	t.Helper()
	var all []shown
	add := func(where, domain, rule, limits string) {
		unique := "shown_" + strconv.Itoa(len(all))
		rule = activeTimes.ReplaceAllString(rule, "active: {from: 2000-01-01}") // so that it applies at any time
		all = append(all, shown{where, unique, strings.Replace(rule, "domain: "+domain, "domain: "+unique, 1), limits})
	}
	walk(t, "../../docs", ".md", func(name, text string) {
		beside := make(map[string]bool)
		rules := make(map[string]string) // rule files of the page, by domain; only the last version of a file counts
		for _, m := range shownRules.FindAllStringSubmatch(text, -1) {
			rules[m[2]] = m[1]
		}
		for _, m := range shownActions.FindAllStringSubmatch(text, -1) {
			beside[m[1]] = true
			if rule, found := rules[m[1]]; found {
				add(name, m[1], rule, m[2])
			} else {
				t.Errorf("%s has actions for the domain %s, and no rules", name, m[1])
			}
		}
		for domain := range rules {
			if filepath.Base(name) == "rules.md" && !beside[domain] {
				t.Errorf("%s has rules of the domain %s without Envoy's actions", name, domain)
			}
		}
	})
	if len(all) < 10 {
		t.Fatalf("only %d pairs of rules and actions on pages", len(all))
	}
	walk(t, "../../config", ".yaml", func(name, text string) {
		// the filter of RLQS has no actions
		if strings.HasSuffix(name, "_test.yaml") || strings.Contains(text, "\nquota_buckets:") {
			return
		}
		m := commentedActions.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s has no rate_limits of Envoy in its comment", name)
			return
		}
		add(name, m[2], text, strings.ReplaceAll("\n"+m[1], "\n# ", "\n"))
	})
	return all
}

// In each example of pages and rule files, Envoy's rate_limits reach the rules. A real Envoy with these settings gets
// requests, and every item of rate_limits adds hits to a rule.
func TestShownActions(t *testing.T) {
	needsEnvoy(t)
	all := allShown(t)
	var files []string
	for _, a := range all {
		files = append(files, a.rules)
	}
	s := startService(t, "ratelimitd", rules(t, files...))
	b := bootstrap{Clusters: []cluster{upstreamCluster(startUpstream(t)), rls(s)}}
	for _, a := range all {
		b.Listeners = append(b.Listeners, listener{
			Name: a.domain,
			FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata: [{metadata_namespace: envoy.filters.http.jwt_authn, value: {payload: {sub: ada}}}]
`,
			Routes: `
- match: {prefix: /}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: ` + a.domain + `
  route:
    cluster: upstream` + indent(4, a.limits),
		})
	}
	e := startEnvoy(t, b)
	for _, a := range all {
		for _, r := range []struct{ method, path, plan string }{{http.MethodGet, "/search?sort=expensive", "free"}, {http.MethodPost, "/login", "gold"}, {http.MethodGet, "/", "trial"}, {http.MethodGet, "/v1/users/7", "free"}, {http.MethodPost, "/graphql", "free"}, {http.MethodPost, "/acme/new-order", "free"}, {http.MethodGet, "/tenants/acme/orders", "free"}, {http.MethodGet, "/search/code", "free"}, {http.MethodGet, "/search", ""}, {http.MethodGet, "/", ""}} {
			ask(t, r.method, e.ports[a.domain], r.path, r.plan)
		}
	}
	counting := countingRules(t, s)
	for _, a := range all {
		items := 0
		for _, i := range a.items() {
			if !i.ends() { // TestShownEnds tests these
				items++
			}
		}
		if counting[a.domain] < items {
			t.Errorf("%s: %d rules count for these %d descriptors:\n%s", a.where, counting[a.domain], items, a.limits)
		}
	}
}

// countingRules returns how many rules of each domain have counted hits.
func countingRules(t *testing.T, s *service) map[string]int {
	t.Helper()
	counting := make(map[string]int)
	for name, hits := range s.metrics(t) {
		if labels, ok := strings.CutPrefix(name, `ratelimitd_rule_hits_total{domain="`); ok && hits > 0 {
			domain, _, _ := strings.Cut(labels, `"`)
			counting[domain]++
		}
	}
	return counting
}

// ask sends a request with all headers that shown rate_limits read, and returns the status of the answer.
func ask(t *testing.T, method, address, path, plan string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range clients {
		req.Header.Set("X-"+key, value)
	}
	if plan == "" { // the user has not logged in
		for _, name := range []string{"X-User", "X-Bot", "X-Consumer", "X-Oauth-Client"} {
			req.Header.Del(name)
		}
	}
	req.Header.Set("X-Plan", plan)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// Items for the end of a request take effect in every example. If an item charges, we keep the item that asks before a
// request, and no other: with a limit of 1, a real Envoy denies some request. If an item returns hits, the hits charged
// at the start are free again: with room for one request, a second one passes.
func TestShownEnds(t *testing.T) {
	needsEnvoy(t)
	numbers := regexp.MustCompile(`\b(requests_per_unit|burst): \d+`)
	places := regexp.MustCompile(`\bmax_in_flight: \d+`)
	shares := regexp.MustCompile(`\bmax_share: [\d.]+`)
	prefix := regexp.MustCompile(`":path", string_match: \{prefix: ([^}]+)\}`)
	type tried struct {
		where, name, path string
		item              item
	}
	var files []string
	var all []tried
	b := bootstrap{Clusters: []cluster{upstreamCluster(startUpstream(t))}}
	for _, a := range allShown(t) {
		for n, i := range a.items() {
			if !i.ends() {
				continue
			}
			name := a.domain + "_" + strconv.Itoa(n)
			limits, most := i.text, "1"
			if i.returns() {
				most = "100"
			}
			for _, other := range a.items() {
				asks := !i.returns() && strings.Contains(other.text, "{number: 0}")
				if !other.ends() && (asks || i.returns() && other.entries() == i.entries()) {
					limits += other.text
				}
			}
			rules := numbers.ReplaceAllString(strings.Replace(a.rules, "domain: "+a.domain, "domain: "+name, 1), "${1}: "+most)
			files = append(files, shares.ReplaceAllString(places.ReplaceAllString(rules, "max_in_flight: 1"), "max_share: 1"))
			path := "/"
			if m := prefix.FindStringSubmatch(i.text); m != nil {
				path = m[1]
			}
			all = append(all, tried{a.where, name, path, i})
			b.Listeners = append(b.Listeners, listener{
				Name: name,
				FiltersBefore: `
- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata:
    - {metadata_namespace: usage, value: {cpu_ms: 7}}
    - {metadata_namespace: llm, value: {max_tokens: 60, tokens: 5, unused: 55}}
    - {metadata_namespace: discord, value: {answers: invalid}}
    - {metadata_namespace: laravel, value: {answers: not_found}}
- name: envoy.filters.http.fault # so that %DURATION% is more than 0
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault
    delay: {fixed_delay: 0.002s, percentage: {numerator: 100}}
`,
				Routes: `
- match: {prefix: /}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: ` + name + `
      rate_limits:` + indent(6, limits) + `
  route: {cluster: upstream}`,
			})
		}
	}
	s := startService(t, "ratelimitd", rules(t, files...))
	b.Clusters = append(b.Clusters, rls(s))
	e := startEnvoy(t, b)
	for _, a := range all {
		if first := ask(t, http.MethodPost, e.ports[a.name], a.path, "free"); first != http.StatusOK {
			t.Errorf("%s: the first request got %d:%s", a.where, first, a.item.text)
			continue
		}
		want := http.StatusTooManyRequests
		if a.item.returns() {
			want = http.StatusOK
		}
		for tries := 0; ask(t, http.MethodPost, e.ports[a.name], a.path, "free") != want; tries++ {
			if tries == 200 { // Envoy charges the end of a request after it has answered
				t.Errorf("%s: no request got %d, so this has no effect:%s", a.where, want, a.item.text)
				break
			}
		}
	}
	counting := countingRules(t, s)
	for _, a := range all {
		if counting[a.name] == 0 {
			t.Errorf("%s: no rule counts, so this shows nothing:%s", a.where, a.item.text)
		}
	}
}
