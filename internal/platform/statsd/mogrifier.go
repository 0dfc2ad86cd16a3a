package statsd

import (
	"regexp"
	"strconv"
)

// Mogrifier gives another name and tags to statistics whose names match its pattern. In both, $0 is the match and $1
// its first group. A reference to a missing group stays as it is.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string
	Tags    []Tag
}

var group = regexp.MustCompile(`\$\d+`)

func expand(template string, groups []string) string {
	return group.ReplaceAllStringFunc(template, func(ref string) string {
		i, err := strconv.Atoi(ref[1:])
		if err != nil || i >= len(groups) {
			return ref
		}
		return groups[i]
	})
}

// mogrify applies the first mogrifier that matches.
func mogrify(all []Mogrifier, name string) (string, []string) {
	for i := range all {
		m := &all[i]
		groups := m.Pattern.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		var tags []string
		for _, t := range m.Tags {
			// Values that come from a name keep their dots, unlike values in the operator's tags.
			tags = append(tags, clean(t.Key, ":|,#")+":"+clean(expand(t.Value, groups), "|,#"))
		}
		return clean(expand(m.Name, groups), ":|"), tags
	}
	return name, nil
}
