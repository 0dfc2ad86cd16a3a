package descriptor

import (
	"strings"
	"testing"
	"time"
)

func TestUnits(t *testing.T) {
	// The numbers are the ones of the protocol: they must never change.
	for unit, want := range map[Unit]struct {
		number uint8
		name   string
		length time.Duration
	}{
		Second: {1, "second", time.Second},
		Minute: {2, "minute", time.Minute},
		Hour:   {3, "hour", time.Hour},
		Day:    {4, "day", 24 * time.Hour},
		Month:  {5, "month", 30 * 24 * time.Hour},
		Year:   {6, "year", 365 * 24 * time.Hour},
		Week:   {7, "week", 7 * 24 * time.Hour},

		Millisecond: {8, "millisecond", time.Millisecond}, // not in the protocol
	} {
		if uint8(unit) != want.number || unit.String() != want.name || unit.Length() != want.length || !unit.Valid() || unit.OnWire() != (unit != Millisecond) {
			t.Errorf("unit %d is %q of %v, want %d, %q of %v", unit, unit, unit.Length(), want.number, want.name, want.length)
		}
		for _, name := range []string{want.name, strings.ToUpper(want.name)} {
			if got := ParseUnit(name); got != unit {
				t.Errorf("%q is parsed as %v", name, got)
			}
		}
	}
	for _, name := range UnitNames {
		if !ParseUnit(name).Valid() {
			t.Errorf("%q is offered and not understood", name)
		}
	}
	for _, unit := range []Unit{UnitUnknown, Millisecond + 1, 255} {
		if unit.Valid() || unit.OnWire() || unit.Length() != 0 || unit.String() != "unknown" {
			t.Errorf("unit %d is %q of %v and valid: %v", uint8(unit), unit, unit.Length(), unit.Valid())
		}
	}
	for _, name := range []string{"", "unknown", "seconds", "fortnight", "minute "} {
		if got := ParseUnit(name); got != UnitUnknown {
			t.Errorf("%q is parsed as %v", name, got)
		}
	}
}
