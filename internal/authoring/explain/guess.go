package explain

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// closestDomain returns the domain with the most similar name, or "".
func closestDomain(t *descriptor.Tree, name string) string {
	var names []string
	for _, r := range t.Rules {
		if len(names) == 0 || names[len(names)-1] != r.Domain {
			names = append(names, r.Domain)
		}
	}
	return yamlform.Closest(name, names)
}
