package config

import (
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// readPenalty reads how long a penalty lasts. It returns nil if there is an error.
func readPenalty(v yamlform.Value) *descriptor.Limit {
	text, ok := v.Text()
	if !ok {
		return nil
	}
	lasts, err := time.ParseDuration(text)
	if err != nil || lasts < time.Second || lasts > descriptor.MaxPenalty || lasts%time.Second != 0 ||
		strings.Trim(text, "0123456789hms") != "" {
		v.Errorf("`penalty` must be a duration from 1s to 720h in whole seconds, such as 10m or 24h, not %s",
			yamlform.Quote(text))
		return nil
	}
	return descriptor.NewPenalty(lasts)
}
