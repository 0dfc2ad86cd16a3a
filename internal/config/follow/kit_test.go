package follow

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rules is a file with one domain and one rule that allows this number of requests.
func rules(domain string, requests int) string {
	return fmt.Sprintf("domain: %s\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]\n", domain, requests)
}

// requests returns the number that the rule of such a file allows now, or -1 without a rule.
func requests(tree *descriptor.Tree, domain string) int {
	d := tree.Domain(domain)
	if d == nil {
		return -1
	}
	r := d.Match([]descriptor.Entry{{Key: "k", Value: "v"}})
	if r == nil {
		return -1
	}
	return int(r.Limits[0].Requests)
}

// states returns "name=state" for every file.
func states(r config.Result) []string {
	out := []string{}
	for _, f := range r.Files {
		out = append(out, f.Name+"="+string(f.State))
	}
	return out
}
