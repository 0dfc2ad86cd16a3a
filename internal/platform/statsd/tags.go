package statsd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Tag is a key and a value that is sent with statistics.
type Tag struct{ Key, Value string }

// ParseTags parses "key:value,key:value". It returns tags sorted by key; of two with the same key the last one wins.
func ParseTags(text string) ([]Tag, error) {
	var tags []Tag
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%q is no tag: write key:value,key:value", part)
		}
		tags = slices.DeleteFunc(tags, func(t Tag) bool { return t.Key == key })
		tags = append(tags, Tag{key, value})
	}
	slices.SortFunc(tags, func(a, b Tag) int { return cmp.Compare(a.Key, b.Key) })
	return tags, nil
}

// plain appends tags to a statistic's name in the form that Lyft's StatsD relays read.
func plain(name string, tags []Tag) string {
	for _, t := range tags {
		name += ".__" + clean(t.Key, ".:|") + "=" + clean(t.Value, ".:|")
	}
	return name
}

// datadog returns tags in the form of DogStatsD. Dots, colons and bars in values are replaced, as in plain StatsD.
func datadog(tags []Tag) []string {
	var all []string
	for _, t := range tags {
		all = append(all, clean(t.Key, ":|,#")+":"+clean(t.Value, ".:|,#"))
	}
	return all
}

// clean replaces control characters, which would end a statistic, and the given special characters by underscores.
func clean(text, meaning string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || strings.ContainsRune(meaning, r) {
			return '_'
		}
		return r
	}, text)
}
