package statsd

import (
	"io"
	"maps"
	"slices"
	"strconv"
)

// WriteText writes all statistics as lines of "name: value", sorted by name.
func (s Source) WriteText(w io.Writer) error {
	values := make(map[string]uint64)
	s.Counters(func(path, stat string, n uint64) { values[name{path, stat}.String()] += n })
	if s.Gauges != nil {
		s.Gauges(func(path, stat string, n uint64) { values[name{path, stat}.String()] = n })
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, err := io.WriteString(w, name+": "+strconv.FormatUint(values[name], 10)+"\n"); err != nil {
			return err
		}
	}
	return nil
}
