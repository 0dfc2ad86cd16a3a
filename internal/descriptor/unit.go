package descriptor

import (
	"strings"
	"time"
)

// Unit is the unit of time of a limit's window. The numbers up to Week come from Envoy's protocol, which has no other
// units.
type Unit uint8

// The units. Months have 30 days and years 365, as in every release of the protocol's other servers. Window.Location
// makes windows follow the calendar instead.
const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
	Millisecond // only in rule files: OnWire
)

const day = 24 * time.Hour

var units = [...]struct {
	name   string
	length time.Duration
}{
	UnitUnknown: {"unknown", 0},
	Second:      {"second", time.Second},
	Minute:      {"minute", time.Minute},
	Hour:        {"hour", time.Hour},
	Day:         {"day", day},
	Month:       {"month", 30 * day},
	Year:        {"year", 365 * day},
	Week:        {"week", 7 * day},
	Millisecond: {"millisecond", time.Millisecond},
}

// UnitNames lists the names that ParseUnit accepts, shortest unit first, for error messages.
var UnitNames = []string{"millisecond", "second", "minute", "hour", "day", "week", "month", "year"}

// WireUnitNames lists the units that the limit of a request may have, shortest first.
var WireUnitNames = UnitNames[1:]

// WeekStartNames are the names of Window.WeekStart in rule files.
var WeekStartNames = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// ParseUnit returns the unit with that name in any case, or UnitUnknown.
func ParseUnit(name string) Unit {
	for u := Second; u.Valid(); u++ {
		if strings.EqualFold(name, units[u].name) {
			return u
		}
	}
	return UnitUnknown
}

// Valid reports whether u is one of the named units.
func (u Unit) Valid() bool { return u > UnitUnknown && int(u) < len(units) }

// OnWire reports whether u is a unit of the protocol. Check numbers from the wire with it: the protocol's enum is open.
func (u Unit) OnWire() bool { return u > UnitUnknown && u <= Week }

// Length returns the length of one unit, or 0 if the unit is not Valid.
func (u Unit) Length() time.Duration {
	if !u.Valid() {
		return 0
	}
	return units[u].length
}

// String returns the unit's name in lower case.
func (u Unit) String() string {
	if !u.Valid() {
		return units[UnitUnknown].name
	}
	return units[u].name
}
