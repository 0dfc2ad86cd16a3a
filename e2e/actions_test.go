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
	// shownRules are the rule files of a page: those that a reader writes, and examples.
	shownRules = regexp.MustCompile("(?s)```yaml\n((?:#[^\n]*\n)*domain: (\\w+)[^\n]*\n.*?)```\n")
	// shownActions are the rate_limits of Envoy for the rules of a domain.
	shownActions = regexp.MustCompile("(?s)<!-- envoy: (\\w+) -->\n```yaml\n(.*?)```\n")
)

// The rate_limits of Envoy that pages show reach the rules beside them: a real Envoy with these settings gets requests,
// and every item of rate_limits makes a rule count.
func TestShownActions(t *testing.T) {
	needsEnvoy(t)
	type shown struct {
		page, domain, limits string
		items                int
	}
	var files []string
	var all []shown
	err := filepath.WalkDir("../docs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rules := make(map[string]string) // of the page, by domain; the last version of a file is in force
		for _, m := range shownRules.FindAllSubmatch(text, -1) {
			rules[string(m[2])] = string(m[1])
		}
		for _, m := range shownActions.FindAllSubmatch(text, -1) {
			domain := string(m[1])
			rule, found := rules[domain]
			if !found {
				t.Errorf("%s has actions for the domain %s, and no rules", name, domain)
				continue
			}
			unique := "page_" + strconv.Itoa(len(all)) // as pages may use a domain twice
			files = append(files, strings.Replace(rule, "domain: "+domain, "domain: "+unique, 1))
			all = append(all, shown{name, unique, string(m[2]), strings.Count(string(m[2]), "- actions:")})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d pairs of rules and actions", len(all))
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
		for method, path := range map[string]string{http.MethodGet: "/search?sort=expensive", http.MethodPost: "/login"} {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://"+e.ports[a.domain]+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"X-User-Id": {"ada"}, "X-Api-Key": {"k1"}, "X-Plan": {"free"}, "X-To-Number": {"2061234567"}}
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
			t.Errorf("%s: %d rules count for these %d descriptors:\n%s", a.page, counting[a.domain], a.items, a.limits)
		}
	}
}
