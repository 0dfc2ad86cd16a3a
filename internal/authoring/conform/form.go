package conform

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Form is the form in which a service reads rules.
type Form string

// The forms.
const (
	Envoy     Form = "envoy"     // envoyproxy/ratelimit's: a file for each domain
	Limitador Form = "limitador" // one file for all namespaces
)

// limit is a limit of a case whose requests are counted. Without a value, each value of the key has a separate counter.
type limit struct {
	key, value   string
	requests     int
	unit         string
	reservations bool
}

var seconds = map[string]int{"second": 1, "hour": 3600, "day": 86400}

// rules returns rules with these limits, and one of 0 for the key probe.
func (f Form) rules(domain string, limits []limit) string {
	limits = append([]limit{{"probe", "probe", 0, "day", false}}, limits...)
	if f == Limitador {
		return limitadorRules(domain, limits)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for _, l := range limits {
		fmt.Fprintf(&b, "  - key: %s\n", l.key)
		if l.value != "" {
			fmt.Fprintf(&b, "    value: %s\n", l.value)
		}
		if l.reservations { // a key of ratelimitd
			fmt.Fprintf(&b, "    reservations: true\n")
		}
		fmt.Fprintf(&b, "    rate_limit: {unit: %s, requests_per_unit: %d}\n", l.unit, l.requests)
	}
	return b.String()
}

// limitadorRules gives all limits but the probe the same conditions: that the request has the values. Each key is in a
// separate descriptor, in the order of the limits.
func limitadorRules(domain string, limits []limit) string {
	var b strings.Builder
	write := func(l limit, conditions, variables []string) {
		fmt.Fprintf(&b, "- {namespace: %s, max_value: %d, seconds: %d, conditions: [%s], variables: [%s]}\n",
			domain, l.requests, seconds[l.unit], strings.Join(conditions, ", "), strings.Join(variables, ", "))
	}
	write(limits[0], []string{`"descriptors[0]['probe'] == 'probe'"`}, nil)
	var conditions []string
	for i, l := range limits[1:] {
		if l.value != "" {
			conditions = append(conditions, fmt.Sprintf(`"descriptors[%d]['%s'] == '%s'"`, i, l.key, l.value))
		}
	}
	for i, l := range limits[1:] {
		var variables []string
		if l.value == "" {
			variables = []string{fmt.Sprintf(`"descriptors[%d]['%s']"`, i, l.key)}
		}
		write(l, conditions, variables)
	}
	return b.String()
}

// write writes the named rule file. limitador gets all limits in a new file, to which a link points, as in a ConfigMap:
// it reads a file that is written in place before it is complete.
func (f Form) write(directory, name string, files map[string]string) error {
	path := filepath.Join(directory, filePrefix+name+".yaml")
	if f != Limitador {
		return os.WriteFile(path, []byte(files[name]), 0o644) //nolint:gosec // the service may be another user
	}
	if err := os.WriteFile(path, []byte(strings.Join(slices.Sorted(maps.Values(files)), "")), 0o644); err != nil { //nolint:gosec // see above
		return err
	}
	link := filepath.Join(directory, "limits.yaml")
	_ = os.Remove(link + ".new")
	if err := os.Symlink(filepath.Base(path), link+".new"); err != nil {
		return err
	}
	return os.Rename(link+".new", link)
}
