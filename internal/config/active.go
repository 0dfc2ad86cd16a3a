package config

import (
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// activeReading is an `active` while its map is being read. Dates need the zone, which may come after them.
type activeReading struct {
	active      descriptor.Active
	from, until yamlform.Value
	limited     bool // it has settings other than a zone
	bad         bool // an error is recorded
}

var (
	dayTime = yamlform.Type{Kind: yamlform.Text, Pattern: "[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2})?",
		Form: "a day or a time, such as 2026-12-01 or 2026-12-01T18:00"}
	hoursType = yamlform.Type{Kind: yamlform.Text,
		Pattern: "([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)", Form: "hours, such as 08:00-20:00"}
)

// activeForm is the map of `active`.
var activeForm = yamlform.NewForm("active", "`active`", []yamlform.Field[activeReading]{
	{Key: yamlform.Key{Name: "from", Type: dayTime, Extension: true,
		Doc: "when the limit starts to apply"},
		Read: func(a *activeReading, v yamlform.Value) { a.from, a.limited = v, true }},
	{Key: yamlform.Key{Name: "until", Type: dayTime, Extension: true,
		Doc: "when it ends. `2026-12-24` is the start of that day"},
		Read: func(a *activeReading, v yamlform.Value) { a.until, a.limited = v, true }},
	{Key: yamlform.Key{Name: "weekdays", Type: yamlform.SomeOf(descriptor.WeekdayNames...), Extension: true,
		Default: "every day", Doc: "the days on which it applies"},
		Read: func(a *activeReading, v yamlform.Value) { a.readWeekdays(v) }},
	{Key: yamlform.Key{Name: "hours", Type: hoursType, Extension: true,
		Default: "the whole day", Doc: "the hours in which it applies. `22:00-06:00` ends on the next day"},
		Read: func(a *activeReading, v yamlform.Value) { a.readHours(v) }},
	{Key: yamlform.Key{Name: "zone", Type: yamlform.Type{Kind: yamlform.Text, Pattern: "[A-Za-z][A-Za-z0-9_+/-]*",
		Form: "a time zone of the IANA database"}, Extension: true,
		Default: "UTC", Doc: "the zone of these times"},
		Read: func(a *activeReading, v yamlform.Value) {
			zone, ok := v.Zone()
			a.active.Zone, a.bad = zone, a.bad || !ok
		}},
}...)

// readActive reads an `active`. It returns nil if there are errors.
func readActive(v yamlform.Value) *descriptor.Active {
	var a activeReading
	read, unknown := yamlform.Read(v, activeForm, &a)
	if !read || unknown {
		return nil
	}
	if a.active.Zone == nil {
		a.active.Zone = time.UTC
	}
	a.readTime(a.from, &a.active.From)
	a.readTime(a.until, &a.active.Until)
	switch {
	case a.bad:
		return nil
	case !a.limited:
		v.Errorf("`active` without a time: write `from`, `until`, `weekdays` or `hours`, or leave it out")
		return nil
	case a.active.From != 0 && a.active.Until != 0 && a.active.Until <= a.active.From:
		a.until.Errorf("`until` is not after `from`: the limit would never apply")
		return nil
	}
	return &a.active
}

// readTime reads a day or a time in the zone.
func (a *activeReading) readTime(v yamlform.Value, into *int64) {
	if !v.Given() {
		return
	}
	text, ok := v.Text()
	if !ok {
		a.bad = true
		return
	}
	form := time.DateOnly
	if len(text) > len(form) {
		form = "2006-01-02T15:04"
	}
	t, err := time.ParseInLocation(form, text, a.active.Zone)
	if err != nil || len(text) != len(form) || t.Unix() <= 0 {
		v.Errorf("`%s` must be a day or a time after 1970, such as 2026-12-01 or 2026-12-01T18:00, not %s", v.Key(),
			yamlform.Quote(text))
		a.bad = true
		return
	}
	*into = t.Unix()
}

func (a *activeReading) readWeekdays(v yamlform.Value) {
	a.limited = true
	switch {
	case !v.IsList():
		v.Errorf("`weekdays` must be a list, not %s: write some of %s in brackets", v.What(),
			yamlform.List(descriptor.WeekdayNames, "and"))
		a.bad = true
		return
	case v.Len() == 0:
		v.Errorf("`weekdays` is empty: the limit would never apply")
		a.bad = true
		return
	}
	for item := range v.Items() {
		i, ok := item.Choice()
		if !ok {
			a.bad = true
			continue
		}
		if a.active.Days&descriptor.DayBit(i) != 0 {
			item.Errorf("%s twice in `weekdays`", yamlform.Quote(descriptor.WeekdayNames[i]))
			a.bad = true
		}
		a.active.Days |= descriptor.DayBit(i)
	}
}

func (a *activeReading) readHours(v yamlform.Value) {
	a.limited = true
	text, ok := v.Text()
	if !ok {
		a.bad = true
		return
	}
	minutes := func(text string) uint16 {
		if text == "24:00" {
			return 24 * 60
		}
		t, err := time.Parse("15:04", text)
		ok = ok && err == nil && len(text) == len("15:04")
		return uint16(t.Hour()*60 + t.Minute())
	}
	if ok = len(text) == len("15:04-15:04") && text[5] == '-' && text[:5] != "24:00"; ok {
		a.active.Begin, a.active.End = minutes(text[:5]), minutes(text[6:])
	}
	switch {
	case !ok:
		v.Errorf("`hours` must be two times of a day, such as 08:00-20:00 or 22:00-06:00, not %s", yamlform.Quote(text))
	case a.active.Begin == a.active.End:
		v.Errorf("`hours` start and end at %s: for a whole day leave them out", strconv.Quote(text[:5]))
	default:
		return
	}
	a.bad = true
}
