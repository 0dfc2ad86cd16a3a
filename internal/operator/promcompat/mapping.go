package promcompat

import (
	_ "embed" // the built-in mapping
	"fmt"
	"log/slog"

	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

//go:embed default.yaml
var defaultMapping string

// load parses a mapping; the empty text is the built-in one.
func load(text string) (*mapper.MetricMapper, error) {
	// it would warn of slow mappings, but each name is mapped only once
	m := &mapper.MetricMapper{Logger: slog.New(slog.DiscardHandler)}
	if text == "" {
		return m, m.InitFromYAMLString(defaultMapping)
	}
	text, err := modern(text)
	if err != nil {
		return nil, fmt.Errorf("read mapping: %w", err)
	}
	if err := m.InitFromYAMLString(text); err != nil {
		return nil, fmt.Errorf("read mapping: %w", err)
	}
	return m, nil
}

// modern rewrites a mapping to the current keys. The library no longer accepts the older keys timer_type, buckets and
// quantiles, and the metric type timer, which envoyproxy/ratelimit's documents and most files use.
func modern(text string) (string, error) {
	documents, err := yamlform.Decode([]byte(text))
	if err != nil || len(documents) == 0 {
		return "", err
	}
	file, ok := documents[0].(map[string]any)
	if !ok {
		return text, nil // the library reports the error
	}
	if defaults, ok := file["defaults"].(map[string]any); ok {
		modernize(defaults)
	}
	mappings, _ := file["mappings"].([]any)
	for _, each := range mappings {
		if m, ok := each.(map[string]any); ok {
			modernize(m)
		}
	}
	out, err := yamlform.Encode(file)
	return string(out), err
}

func modernize(m map[string]any) {
	into := func(key, group, as string) {
		value, old := m[key]
		if !old {
			return
		}
		delete(m, key)
		if group == "" {
			if _, said := m[as]; !said {
				m[as] = value
			}
			return
		}
		options, ok := m[group].(map[string]any)
		if !ok {
			options = make(map[string]any)
			m[group] = options
		}
		if _, said := options[as]; !said {
			options[as] = value
		}
	}
	into("timer_type", "", "observer_type")
	into("buckets", "histogram_options", "buckets")
	into("quantiles", "summary_options", "quantiles")
	if m["match_metric_type"] == "timer" {
		m["match_metric_type"] = "observer"
	}
}
