package statsd

import (
	"regexp"
	"strconv"
)

// Mogrifier gives the statistics whose name its pattern matches another name, and tags. In both $0 is what matched, and
// $1 what its first group did; the number of a group that is not there stays as it is.
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
			// Unlike those that the operator writes out, values that come from a name keep their dots.
			tags = append(tags, clean(t.Key, ":|,#")+":"+clean(expand(t.Value, groups), "|,#"))
		}
		return clean(expand(m.Name, groups), ":|"), tags
	}
	return name, nil
}
