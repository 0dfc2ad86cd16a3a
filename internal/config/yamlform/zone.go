package yamlform

import (
	"strings"
	"sync"
	"time"
)

// zones holds the time zones that files have named: reading one takes longer than reading a rule. There are no more of
// them than the database of time zones has.
var zones sync.Map // string to *time.Location

// Zone reads the name of a time zone.
func (v Value) Zone() (*time.Location, bool) {
	text, ok := v.Text()
	if !ok {
		return nil, false
	}
	if zone := v.r.zone(text); zone != nil {
		return zone, true
	}
	if c := titled(text); v.r.zone(c) != nil {
		v.Errorf("unknown time zone %s: did you mean `%s`?", Quote(text), c)
	} else {
		v.Errorf("unknown time zone %s: %s takes a name of the IANA database, like `Asia/Seoul` or `UTC`", Quote(text),
			v.label())
	}
	return nil, false
}

// zone is loadZone. It looks a name up once, because that reads files; and no longer looks if the file has too many
// errors, because then it is rejected anyway.
func (r *Reader) zone(name string) *time.Location {
	if _, none := r.noZones[name]; none || r.errs.more > 0 {
		return nil
	}
	zone := loadZone(name)
	if zone == nil {
		if r.noZones == nil {
			r.noZones = make(map[string]struct{})
		}
		r.noZones[name] = struct{}{}
	}
	return zone
}

// loadZone returns the time zone of that name, or nil if it does not exist. The machine's local zone is not accepted:
// replicas would disagree.
func loadZone(name string) *time.Location {
	if name == "" || name == "Local" {
		return nil
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	kept, _ := zones.LoadOrStore(name, zone)
	return kept.(*time.Location)
}

// titled is a name as most time zones are written: Asia/Ho_Chi_Minh.
func titled(name string) string {
	if strings.IndexByte(name, '/') < 0 {
		return strings.ToUpper(name)
	}
	b := []byte(strings.ReplaceAll(strings.ToLower(name), " ", "_"))
	for i := range b {
		if (i == 0 || b[i-1] == '/' || b[i-1] == '_' || b[i-1] == '-') && 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}
