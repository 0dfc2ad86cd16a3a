package rulecheck

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// buckets finds keys in the `order` of quota buckets with which a bucket's id matches no rule. A domain with a * in a
// key has no such finding: its rules may match any key.
func (c *checker) buckets(d *domain) {
	if len(d.orders) == 0 {
		return
	}
	above := make(map[string]map[string]bool) // keys of the levels above each key
	wildcard := false
	var walk func(nodes []*node, path []string)
	walk = func(nodes []*node, path []string) {
		for _, n := range nodes {
			wildcard = wildcard || descriptor.HasWildcard(n.key)
			if above[n.key] == nil {
				above[n.key] = make(map[string]bool)
			}
			for _, key := range path {
				above[n.key][key] = true
			}
			walk(n.children, append(path[:len(path):len(path)], n.key))
		}
	}
	walk(d.roots, nil)
	if wildcard {
		return
	}
	for _, order := range d.orders {
		for i, k := range order {
			if above[k.text] == nil {
				c.add(Warning, k.at, codeBucketOrder, fixKey(k.text, sorted(above)),
					"`order` of %s: no rule of the domain %s has that key, so a bucket with it matches no rule",
					yamlform.Quote(k.text), yamlform.Quote(d.name))
				continue
			}
			for _, before := range order[:i] {
				if above[before.text][k.text] && !above[k.text][before.text] {
					one, other := yamlform.Quote(k.text), yamlform.Quote(before.text)
					c.add(Warning, k.at, codeBucketOrder, "swap the two",
						"`order` has %s after %s: the rules have %s above %s and never below it, so a bucket with both "+
							"matches no rule", one, other, one, other)
					break
				}
			}
		}
	}
}

// fixKey suggests a fix for a key that no rule of the domain uses.
func fixKey(key string, keys []string) string {
	if near := yamlform.Closest(key, keys[:min(len(keys), 1000)]); near != "" {
		return "did you mean `" + near + "`?"
	}
	if len(keys) > 0 && len(keys) <= 5 {
		return "the keys of this domain are " + quoted(keys)
	}
	return "write a key of this domain's rules, or remove it"
}
