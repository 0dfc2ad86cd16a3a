package config

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The shipped example rules decide as their comments describe.
func TestShippedDomains(t *testing.T) {
	r, err := NewDirectory(Options{Dir: "../../config", Logger: new(logged).logger()}).Load()
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, f := range r.Files {
		if f.State != descriptor.FileLoaded {
			t.Errorf("%s is %s: %s", f.Name, f.State, strings.Join(f.Errors, "; "))
		}
		for _, d := range f.Domains {
			tested[d] = strings.HasPrefix(d, "cookbook_") || d == "articles" // the test file next to it covers it
		}
	}

	for _, c := range []struct {
		domain  string
		entries string // "key=value key=value"
		unit    descriptor.Unit
		limit   uint64
		note    string // unlimited, shadow, shared; none: no rule matches
	}{
		{"messaging", "message_type=marketing to_number=2061234567", descriptor.Day, 5, ""},
		{"messaging", "to_number=2061234567", descriptor.Day, 100, ""},
		{"messaging", "message_type=marketing", 0, 0, "none"},
		{"messaging", "message_type=invoice to_number=2061234567", 0, 0, "none"},
		{"edge_proxy_per_ip", "remote_address=192.0.2.1", descriptor.Second, 10, ""},
		{"edge_proxy_per_ip", "remote_address=203.0.113.5", descriptor.Minute, 1, ""},
		{"edge_proxy_per_ip", "remote_address=203.0.113.6", descriptor.Second, 0, ""},
		{"edge_proxy_per_ip", "remote_address=10.1.2.3", 0, 0, "unlimited"},
		{"edge_proxy_per_ip", "remote_address=198.51.100.77", descriptor.Second, 100, "shared"},
		{"database", "database=users", descriptor.Second, 500, ""},
		{"database", "database=users query=write", descriptor.Second, 50, ""},
		{"database", "database=users query=report_daily", descriptor.Second, 10, ""},
		{"database", "database=orders", descriptor.Second, 200, ""},
		{"api", "customer=acme", descriptor.Hour, 1000, ""},
		{"api", "customer=acme plan=gold", descriptor.Hour, 20000, ""},
		{"api", "endpoint=/v1/search", descriptor.Minute, 300, "shadow"},
		{"saas_api", "plan=free api_key=ann", descriptor.Day, 1000, "shared"},
		{"saas_api", "plan=pro api_key=ann endpoint=export", descriptor.Hour, 10, "shared"},
		{"saas_api", "plan=pro api_key=acme", descriptor.Day, 5000000, "shared"},
		{"saas_api", "plan=pro api_key=acme endpoint=search", descriptor.Minute, 300, "shared"},
		{"tenants", "remote_address=2001:db8::1", descriptor.Second, 10, ""},
		{"tenants", "remote_address=2001:db8:ff00::1", descriptor.Second, 100, ""},
		{"tenants", "path=/tenants/acme/orders", descriptor.Minute, 600, ""},
		{"tenants", "api_key=ACME", descriptor.Minute, 6000, ""},
		{"exports", "customer=acme", descriptor.Week, 50, ""},
		{"exports", "rows=acme", descriptor.Day, 1000000, ""},
		{"exports", "progress=acme", descriptor.Minute, 60, ""},
		{"quota", "plan=free", descriptor.Second, 1000, ""},
		{"quota", "plan=pro customer=acme", descriptor.Second, 2000, ""},
		{"opening_hours", "to_number=1", descriptor.Hour, 10, ""},
		{"opening_hours", "subscriber=ann", descriptor.Day, 3, ""},
		{"opening_hours", "support_caller=ann", descriptor.Hour, 2, ""},
		{"opening_hours", "buyer=ann", descriptor.Minute, 5, ""},
		{"saas_api", "plan=gold api_key=ann", descriptor.Day, 1000, "shared"},
		{"sms_sender", "plan=trial customer=ann", descriptor.Day, 100, "shared"},
		{"sms_sender", "plan=pro customer=bank", descriptor.Day, 2000000, "shared"},
		{"sms_sender", "plan=pro customer=bank message_type=marketing", descriptor.Day, 20000, "shared"},
		{"sms_sender", "to_number=+12065550123 message_type=code", descriptor.Minute, 3, ""},
		{"sms_sender", "to_number=+15005550006", 0, 0, "unlimited"},
		{"sms_sender", "country=US sender=12345", descriptor.Second, 100, ""},
		{"sms_sender", "country=KR sender=12345", descriptor.Second, 10, ""},
		{"llm_gateway", "plan=free customer=ann requests=small", descriptor.Minute, 10, "shared"},
		{"llm_gateway", "plan=team customer=ann tokens=large", descriptor.Minute, 30000, "shared"},
		{"llm_gateway", "plan=team customer=acme tokens=large", descriptor.Minute, 60000, "shared"},
		{"llm_gateway", "plan=team customer=acme tokens=small", descriptor.Minute, 200000, "shared"},
		{"llm_gateway", "plan=gold customer=ann tokens=small", descriptor.Minute, 20000, "shared"},
		{"penalties", "form=login remote_address=192.0.2.1", descriptor.Minute, 10, ""},
		{"penalties", "api_key=ann", descriptor.Minute, 100, ""},
		{"roll_out", "search=ann", descriptor.Minute, 100, ""},
		{"roll_out", "export=ann", descriptor.Hour, 50, ""},
		{"roll_out", "partner=acme", descriptor.Day, 5000, ""},
	} {
		tested[c.domain] = true
		var entries []descriptor.Entry
		for _, e := range strings.Fields(c.entries) {
			key, value, _ := strings.Cut(e, "=")
			entries = append(entries, descriptor.Entry{Key: key, Value: value})
		}
		d := r.Tree.Domain(c.domain)
		if d == nil {
			t.Errorf("no domain %s", c.domain)
			continue
		}
		rule := d.Match(entries)
		if (rule == nil) != (c.note == "none") {
			t.Errorf("%s, %s: %+v", c.domain, c.entries, rule)
		}
		if rule == nil {
			continue
		}
		if rule.Unlimited != (c.note == "unlimited") || rule.Shadow != (c.note == "shadow") || rule.Shares(0) != (c.note == "shared") {
			t.Errorf("%s, %s: %+v, want %s", c.domain, c.entries, rule, c.note)
		}
		if !rule.Unlimited && (rule.Limits[0].Requests != c.limit || rule.Limits[0].Window.Unit != c.unit) {
			t.Errorf("%s, %s: %+v", c.domain, c.entries, rule.Limits[0])
		}
	}
	for domain, done := range tested {
		if !done {
			t.Errorf("domain %s is not tested here", domain)
		}
	}

	api := r.Tree.Domain("api")
	gold := api.Match([]descriptor.Entry{{Key: "customer", Value: "acme"}, {Key: "plan", Value: "gold"}})
	standard := api.Match([]descriptor.Entry{{Key: "customer", Value: "acme"}})
	if gold == nil || standard == nil || len(gold.Replaces) != 1 || gold.Replaces[0] != standard.Name || standard.Metadata["contact"] != "api-team" {
		t.Errorf("gold %+v, standard %+v", gold, standard)
	}
}
