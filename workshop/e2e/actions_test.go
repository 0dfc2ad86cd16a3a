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

// activeTimes is the key that takes a limit out of force at some times.
var activeTimes = regexp.MustCompile(`\bactive: \{[^{}]*\}`)

// shown are rules, and the rate_limits of Envoy that are shown with them.
type shown struct {
	where, domain, limits string
	items                 int
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
	"Account": "acct_1", "Api-Key": "k1", "App": "A1", "Bot": "b1", "Buyer": "ann", "Caller": "ann", "Channel": "C1", "Consumer": "c1", "Country": "de",
	"Customer": "acme", "Developer": "d1",
	"Email": "ann@example.com", "Endpoint": "GET /2/tweets/search/recent", "Exact-Set": "h1", "Files": "read", "Identifier": "example.com",
	"Instance": "i-1", "Kind": "post", "Machine": "m1", "Message-Type": "marketing", "Method": "users.info", "Mode": "live", "Model": "large", "New-Account-Address": "192.0.2.1",
	"New-Account-Network": "2001:db8:1::/48", "Oauth-Client": "o1", "Operation": "search", "Organization": "acme", "Payment-Intent": "pi_1", "Project": "p1",
	"Region": "eu", "Registered-Domain": "example.com", "Seller": "s1", "Sender": "ACME", "Shop": "s1", "Store-Plan": "standard", "Subscriber": "ann", "Subscription": "sub_1",
	"Tenant": "acme", "Tier": "start", "To-Number": "2061234567", "Unlisted-Method": "conversations.history", "User": "bob", "User-Id": "ada", "Users": "57",
	"Volume": "vol-1", "Webhook": "B1", "Workspace": "T1",
}

// The rate_limits of Envoy that pages and rule files show reach the rules that are shown with them: a real Envoy with these settings gets requests,
// and every item of rate_limits makes a rule count.
func TestShownActions(t *testing.T) {
	needsEnvoy(t)
	var files []string
	var all []shown
	add := func(where, domain, rule, limits string) {
		unique := "shown_" + strconv.Itoa(len(all))                             // pages may use a domain twice
		rule = activeTimes.ReplaceAllString(rule, "active: {from: 2000-01-01}") // whatever the time is now
		files = append(files, strings.Replace(rule, "domain: "+domain, "domain: "+unique, 1))
		items := strings.Count(limits, "- actions:") - strings.Count(limits, "apply_on_stream_done: true") // these end or charge what others began
		all = append(all, shown{where, unique, limits, items})
	}
	walk(t, "../../docs", ".md", func(name, text string) {
		beside := make(map[string]bool)
		rules := make(map[string]string) // of the page, by domain; the last version of a file is in force
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
		if strings.HasSuffix(name, "_test.yaml") {
			return
		}
		m := commentedActions.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s has no rate_limits of Envoy in its comment", name)
			return
		}
		add(name, m[2], text, strings.ReplaceAll("\n"+m[1], "\n# ", "\n"))
	})

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
		for _, r := range []struct{ method, path, plan string }{{http.MethodGet, "/search?sort=expensive", "free"}, {http.MethodPost, "/login", "gold"}, {http.MethodGet, "/", "trial"}, {http.MethodGet, "/v1/users/7", "free"}, {http.MethodPost, "/graphql", "free"}, {http.MethodPost, "/acme/new-order", "free"}, {http.MethodGet, "/tenants/acme/orders", "free"}} {
			req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+e.ports[a.domain]+r.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for key, value := range clients {
				req.Header.Set("X-"+key, value)
			}
			req.Header.Set("X-Plan", r.plan)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
		}
	}
	counting := make(map[string]int)
	for name, hits := range s.metrics(t) {
		if labels, ok := strings.CutPrefix(name, `ratelimitd_rule_hits_total{domain="`); ok && hits > 0 {
			domain, _, _ := strings.Cut(labels, `"`)
			counting[domain]++
		}
	}
	for _, a := range all {
		if counting[a.domain] < a.items {
			t.Errorf("%s: %d rules count for these %d descriptors:\n%s", a.where, counting[a.domain], a.items, a.limits)
		}
	}
}
