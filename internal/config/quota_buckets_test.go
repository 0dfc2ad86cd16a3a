package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestQuotaBuckets(t *testing.T) {
	for text, want := range map[string]*descriptor.QuotaBuckets{
		"~":                                   nil,
		"{}":                                  {},
		"{default: allow}":                    {},
		"{default: deny}":                     {Deny: true},
		"{order: ~, default: ~}":              {},
		"{order: [plan, user, 7]}":            {Order: []string{"plan", "user", "7"}},
		"{default: deny, order: [a b, user]}": {Order: []string{"a b", "user"}, Deny: true},
	} {
		tree, errs := Compile(filesOf("domain: d\nquota_buckets: "+text+"\n"), CompileOptions{})
		if len(errs) > 0 {
			t.Errorf("%s: %v", text, errs)
			continue
		}
		d := tree.Domain("d")
		if diff := cmp.Diff(want, d.QuotaBuckets); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", text, diff)
		}
		if d.DefaultDenies() != (want != nil && want.Deny) {
			t.Errorf("%s: a bucket without a rule is denied: %t", text, d.DefaultDenies())
		}
	}
}

func TestWrongQuotaBucketsSayWhere(t *testing.T) {
	many := make([]string, MaxBucketOrder+1)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	for _, c := range []struct{ buckets, want string }{
		{"true", "2:16: `quota_buckets` must be a map of keys (`order` and `default`), not true"},
		{"[plan, user]", "2:16: `quota_buckets` must be a map of keys (`order` and `default`), not a list"},
		{"{ordr: [plan]}", "2:17: unknown key `ordr`: did you mean `order`?"},
		{"{order: plan}", "2:24: `order` must be a list, not the text \"plan\": write keys of bucket ids, such as `[plan, user]`"},
		{"{order: []}", "2:24: `order` is empty: write keys of bucket ids, such as `[plan, user]`, or leave it out"},
		{"{order: [plan, user, plan]}", "2:37: \"plan\" twice in `order`: leave out one of them"},
		{"{order: [plan, '']}", "2:31: an empty text in `order`: write a key of bucket ids, or leave it out"},
		{"{order: [plan, ~]}", "2:31: `order` must be text, not nothing"},
		{"{order: [plan, '*']}", "2:31: `order` names keys exactly, so a * in them is not a wildcard: write each key, or leave \"*\" out: keys that are not named follow"},
		{"{order: [plan, {key: user}]}", "2:31: `order` must be text, not a map"},
		{"{order: [" + strings.Join(many, ", ") + "]}", "2:24: `order` has 33 keys, 32 are the most, because rules have no more levels: leave out the others"},
		{"{default: Deny}", "2:26: unknown `default` \"Deny\": did you mean `deny`?"},
		{"{default: true}", "2:26: unknown `default` \"true\": write `allow` or `deny`"},
	} {
		_, errs := Compile(filesOf("domain: d\nquota_buckets: "+c.buckets+"\n"), CompileOptions{})
		if len(errs) != 1 || errs[0].Error() != "a.yaml:"+c.want {
			t.Errorf("%s:\n got %v\nwant a.yaml:%s", c.buckets, errs, c.want)
		}
	}
}

// One file of a domain sets them for all files. Several may set the same.
func TestQuotaBucketsOfSeveralFiles(t *testing.T) {
	const none, ordered, denied = "domain: d\n", "domain: d\nquota_buckets: {order: [plan, user]}\n", "domain: d\nquota_buckets: {order: [plan, user], default: deny}\n"
	for _, c := range []struct {
		files []string
		want  string
	}{
		{[]string{none, denied}, `{order: ["plan", "user"], default: deny}`},
		{[]string{ordered, none, ordered}, `{order: ["plan", "user"]}`},
	} {
		tree, errs := Compile(filesOf(c.files...), CompileOptions{Merge: true})
		if len(errs) > 0 || tree.Domain("d").QuotaBuckets.String() != c.want {
			t.Errorf("%q: %v %v, want %s", c.files, errs, tree.Domain("d").QuotaBuckets, c.want)
		}
	}
	const reversed = "domain: d\nquota_buckets: {order: [user, plan]}\n"
	for _, second := range []string{denied, reversed} {
		_, errs := Compile(filesOf(ordered, second), CompileOptions{Merge: true})
		if len(errs) != 1 || errs[0].Error() != "b.yaml:1:9: domain \"d\" has another `quota_buckets` at a.yaml:1: say it in one of them" {
			t.Errorf("%q: %v", second, errs)
		}
	}
}

// Domains whose buckets find other rules have other checksums. A default may be written or left out.
func TestChecksumOfQuotaBuckets(t *testing.T) {
	seen := make(map[uint64]string)
	for _, texts := range [][]string{
		{"~", "{}", "{default: allow}"},
		{"{default: deny}"},
		{"{order: [plan, user]}", "{order: [plan, user], default: allow}"},
		{"{order: [user, plan]}"},
		{"{order: ['plan, user']}"},
		{"{order: [plan, user], default: deny}"},
	} {
		var first uint64
		for i, text := range texts {
			_, tree, errs := rulesOf(t, "domain: d\nquota_buckets: "+text+"\n")
			if errs != nil {
				t.Fatal(errs)
			}
			if i == 0 {
				first = tree.Checksum
			}
			if tree.Checksum != first {
				t.Errorf("%s and %s have different checksums", texts[0], text)
			}
		}
		if before, twice := seen[first]; twice {
			t.Errorf("%s has the checksum of %s", texts[0], before)
		}
		seen[first] = texts[0]
	}
}
