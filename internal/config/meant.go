package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// meant suggests the correct form for a key of another program or in another form: `limit: {...}`, `per: minute`,
// `plan: gold`.
func meant(m *yamlform.Map, in yamlform.Value, key string, value yamlform.Value) string {
	inDescriptor := m == &descriptorForm.Map
	switch {
	case inDescriptor && (key == "limit" || key == "limits") && value.IsMap():
		return "did you mean `rate_limit`?"
	case inDescriptor && (key == "limit" || key == "limits") && value.IsList():
		return "did you mean `rate_limits`?"
	case key == "per" && value.IsScalar():
		if inDescriptor {
			return "did you mean `unit`, a key of `rate_limit`?"
		}
		return "did you mean `unit`?"
	case inDescriptor && value.IsScalar() && !value.IsNull() && !in.Has("key"):
		return fmt.Sprintf("an entry of the request is `key: %s` and `value: %s`", yamlform.Clip(key),
			yamlform.Quote(value.Written()))
	}
	return ""
}

// unitsByLetter are the units of durations such as 15m.
var unitsByLetter = map[string]descriptor.Unit{
	"ms": descriptor.Millisecond, "s": descriptor.Second, "sec": descriptor.Second, "m": descriptor.Minute,
	"min": descriptor.Minute,
	"h":   descriptor.Hour, "d": descriptor.Day, "w": descriptor.Week,
}

// unknownUnit is a message about a unit that does not exist. A duration, such as 15m or 15 minutes, is a unit and its
// multiplier.
func unknownUnit(text string) string {
	number := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	word := strings.ToLower(strings.TrimSpace(text[len(number):]))
	unit, known := unitsByLetter[word]
	if !known {
		unit = descriptor.ParseUnit(strings.TrimSuffix(word, "s"))
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if !unit.Valid() || err != nil && number != "" || err == nil && n == 0 {
		return yamlform.UnknownWord("unit", text, descriptor.UnitNames)
	}
	if n <= 1 {
		return fmt.Sprintf("unknown unit %s: did you mean `%s`?", yamlform.Quote(text), unit)
	}
	return fmt.Sprintf("unknown unit %s: did you mean `unit: %s` and `unit_multiplier: %d`?", yamlform.Quote(text), unit,
		n)
}
