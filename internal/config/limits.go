package config

import (
	"errors"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxLimits is how many limits one descriptor may have. Each limit adds a counter that a request must pass.
const maxLimits = 16

// limitRow is one key of a rate limit.
type limitRow struct {
	yamlform.Key
	// appliesTo is the setting of the limits that use the key; 0 means all limits. appliesToText describes these limits.
	appliesTo     descriptor.Setting
	appliesToText string
	// unlimited means that the key may be used with `unlimited: true`.
	unlimited bool
	// read stores the value in the limit. For a wrong value it records an error and returns false.
	read func(l *limitReading, v yamlform.Value) bool
}

// limitRows are the keys of a rate limit.
var limitRows = []limitRow{
	{Key: yamlform.Key{Name: "unit", Type: yamlform.Type{Kind: yamlform.Choice, Names: descriptor.UnitNames,
		AnyCase: true}, Required: true,
		Doc: "the window. A month has 30 days and a year 365, except with `calendar` or `USE_CALENDAR_MONTH_RATE_LIMIT`"},
		unlimited: true, // rejected there too, with a separate error
		read: func(l *limitReading, v yamlform.Value) bool {
			name, ok := v.Text()
			if name == "" && ok {
				l.given = l.given[:len(l.given)-1] // an empty unit is as if it were absent
				return true
			}
			l.limit.Window.Unit = descriptor.ParseUnit(name)
			if l.limit.Window.Unit == descriptor.UnitUnknown && ok {
				l.unknown = name
			}
			return ok && l.limit.Window.Unit.Valid()
		}},
	{Key: yamlform.Key{Name: "requests_per_unit", Type: yamlform.Uint53(0),
		Default: "0", Doc: "requests per window. 0 blocks"},
		unlimited: true, // it has no meaning there, but envoyproxy/ratelimit accepts it
		read:      readRequests},
	{Key: yamlform.Key{Name: "unlimited", Type: yamlform.Type{Kind: yamlform.Flag},
		Doc: "everything passes, nothing is counted. Only in `rate_limit`, without `unit`"},
		unlimited: true,
		read: func(l *limitReading, v yamlform.Value) bool {
			l.unlimited = v.Flag()
			return true
		}},
	{Key: yamlform.Key{Name: "name", Type: yamlform.Type{Kind: yamlform.Text},
		Doc: "the name in answers and `replaces`. Required in `rate_limits`"},
		unlimited: true,
		read: func(l *limitReading, v yamlform.Value) (ok bool) {
			l.limit.Name, ok = v.Text()
			return ok
		}},
	{Key: yamlform.Key{Name: "replaces", Type: yamlform.MapsOf("replaces"),
		Doc: "limits with these names do not apply to requests of this rule"},
		unlimited: true,
		read: func(l *limitReading, v yamlform.Value) bool {
			l.readReplaces(v)
			return true
		}},
	{Key: yamlform.Key{Name: "unit_multiplier", Type: yamlform.Uint32(1), Extension: true,
		Default: "1", Doc: "the length of the window in units, up to 90 years"},
		read: readNumber(func(l *limitReading) *uint32 { return &l.limit.Window.Multiplier })},
	{Key: yamlform.Key{Name: "algorithm", Type: yamlform.OneOf(descriptor.AlgorithmNames...), Extension: true,
		Default: algorithms(descriptor.Algorithm(0)), Doc: "how the limit counts"},
		read: func(l *limitReading, v yamlform.Value) bool {
			i, ok := v.Choice()
			l.limit.Algorithm = descriptor.Algorithm(i)
			return ok
		}},
	{Key: yamlform.Key{Name: "max_in_flight", Type: yamlform.Between(1, descriptor.MaxInFlight), Extension: true,
		Doc: "for " + algorithms(descriptor.Concurrency) +
			": how many requests may run at the same time, instead of `unit` and `requests_per_unit`"},
		appliesTo:     descriptor.SettingInFlight,
		appliesToText: "`concurrency`",
		read:          readNumber(func(l *limitReading) *uint64 { return &l.limit.Requests })},
	{Key: yamlform.Key{Name: "ttl", Type: durationType, Extension: true,
		Doc: "for " + algorithms(descriptor.Concurrency) +
			", required: when a request that has not ended stops counting. 1s to 24h, in whole seconds"},
		appliesTo:     descriptor.SettingInFlight,
		appliesToText: "`concurrency`",
		read: func(l *limitReading, v yamlform.Value) bool {
			var ttl time.Duration
			readTTL(&ttl, v)
			if ttl%time.Second != 0 {
				v.Errorf("`ttl` must be whole seconds here, such as 30s or 5m, not %s", ttl)
				return false
			}
			l.limit.Window = descriptor.Window{Unit: descriptor.Second, Multiplier: uint32(ttl / time.Second)}
			return ttl > 0
		}},
	{Key: yamlform.Key{Name: "burst", Type: yamlform.Uint53(0), Extension: true,
		Default: "`requests_per_unit`", Doc: "for " + algorithms(descriptor.TokenBucket) +
			": the size of the bucket, at least 1. For " + algorithms(descriptor.LeakyBucket) +
			": how many requests may wait"},
		appliesTo:     descriptor.SettingBurst,
		appliesToText: "`token_bucket` or `leaky_bucket`",
		read:          readNumber(func(l *limitReading) *uint64 { return &l.limit.Burst })},
	{Key: yamlform.Key{Name: "refill", Type: yamlform.OneOf("greedy", "interval"), Extension: true,
		Default: "`greedy`", Doc: "for " + algorithms(descriptor.TokenBucket) +
			": refills continuously (`greedy`), or at the start of each window (`interval`)"},
		appliesTo:     descriptor.SettingRefill,
		appliesToText: "`token_bucket`",
		read: func(l *limitReading, v yamlform.Value) bool {
			i, ok := v.Choice()
			l.limit.Interval = i == 1
			return ok
		}},
	{Key: yamlform.Key{Name: "align", Type: yamlform.OneOf("clock", "first_hit"), Extension: true,
		Default: "`clock`", Doc: "for " + algorithms(descriptor.FixedWindow) + ", and for " +
			algorithms(descriptor.TokenBucket) +
			" with `refill: interval`: windows start on the clock, or with a counter's first hit"},
		appliesTo:     descriptor.SettingAlign,
		appliesToText: "`fixed_window`, or `token_bucket` with `refill: interval`",
		read: func(l *limitReading, v yamlform.Value) bool {
			i, ok := v.Choice()
			l.limit.FirstHit = i == 1
			return ok
		}},
	{Key: yamlform.Key{Name: "calendar", Type: yamlform.Type{Kind: yamlform.Text, Pattern: "[A-Za-z][A-Za-z0-9_+/-]*",
		Form: "a time zone of the IANA database"}, Extension: true,
		Doc: "for " + algorithms(descriptor.FixedWindow) +
			" of a day or longer: windows follow this zone's days and real months"},
		appliesTo:     descriptor.SettingCalendar,
		appliesToText: "`fixed_window`",
		read: func(l *limitReading, v yamlform.Value) (ok bool) {
			l.limit.Window.Location, ok = v.Zone()
			return ok
		}},
	{Key: yamlform.Key{Name: "week_start", Type: yamlform.OneOf(descriptor.WeekStartNames...), Extension: true,
		Default: "`monday`", Doc: "for `unit: week` with `calendar`: the first day of a week"},
		appliesTo:     descriptor.SettingCalendar,
		appliesToText: "`fixed_window`",
		read: func(l *limitReading, v yamlform.Value) bool {
			i, ok := v.Choice()
			l.limit.Window.WeekStart = uint8(max(i, 0))
			return ok
		}},
	{Key: yamlform.Key{Name: "precision", Type: yamlform.Between(1, 60), Extension: true,
		Default: "1", Doc: "for " + algorithms(descriptor.SlidingWindow) + ": the number of sub-windows of the estimate"},
		appliesTo:     descriptor.SettingPrecision,
		appliesToText: "`sliding_window`",
		read:          readNumber(func(l *limitReading) *uint32 { return &l.limit.Precision })},
	{Key: yamlform.Key{Name: "nodelay", Type: yamlform.Type{Kind: yamlform.Number, Most: descriptor.NoDelayAll - 1,
		Word: "all"}, Extension: true,
		Default: "0", Doc: "for " + algorithms(descriptor.LeakyBucket) + ": how many waiting requests pass without delay"},
		appliesTo:     descriptor.SettingNoDelay,
		appliesToText: "`leaky_bucket`",
		read: func(l *limitReading, v yamlform.Value) bool {
			if v.IsWord() {
				l.limit.NoDelay = descriptor.NoDelayAll
				return true
			}
			n, ok := v.Number()
			l.limit.NoDelay = uint32(n)
			return ok
		}},
	{Key: yamlform.Key{Name: "lease", Type: yamlform.Type{Kind: yamlform.Flag}, Extension: true,
		Doc: "replicas take hits in batches, and decide without a round trip. The limit still holds"},
		read: func(l *limitReading, v yamlform.Value) bool {
			l.limit.Lease = v.Flag()
			return true
		}},
	{Key: yamlform.Key{Name: "regions", Type: yamlform.MapOf("regions"), Extension: true,
		Default: "the domain's", Doc: "how it counts in several regions"},
		read: func(l *limitReading, v yamlform.Value) bool {
			l.limit.Regions = readRegions(v)
			return l.limit.Regions != nil
		}},
	{Key: yamlform.Key{Name: "active", Type: yamlform.MapOf("active"), Extension: true,
		Default: "always", Doc: "when the limit applies"},
		read: func(l *limitReading, v yamlform.Value) bool {
			l.active = readActive(v)
			l.limit.Scheduled = l.active != nil
			return l.active != nil
		}},
	{Key: yamlform.Key{Name: "scale", Type: yamlform.MapOf("scale"), Extension: true,
		Doc: "multiplies `requests_per_unit` and `burst` by the number in an entry, such as seats"},
		read: func(l *limitReading, v yamlform.Value) bool {
			l.scale = readScale(v)
			return l.scale != nil
		}},
	{Key: yamlform.Key{Name: "classes", Type: yamlform.MapOf("classes"), Extension: true,
		Doc: "for " + algorithms(descriptor.FixedWindow) +
			" without `first_hit`: guarantees parts of the limit to classes"},
		appliesTo:     descriptor.SettingClasses,
		appliesToText: "`fixed_window`",
		read: func(l *limitReading, v yamlform.Value) bool {
			l.classes = readClasses(v)
			return l.classes != nil
		}},
	{Key: yamlform.Key{Name: "penalty", Type: durationType, Extension: true,
		Doc: "1s to 720h, in whole seconds: how long a customer who exceeds the limit is denied"},
		read: func(l *limitReading, v yamlform.Value) bool {
			l.limit.Penalty = readPenalty(v)
			return l.limit.Penalty != nil
		}},
	{Key: yamlform.Key{Name: "count_denied", Type: yamlform.Type{Kind: yamlform.Flag}, Extension: true,
		Default: "`true` for a `fixed_window` with `admission: independent`, else `false`",
		Doc:     "for " + algorithms(descriptor.FixedWindow, descriptor.SlidingLog) + ": denied hits count too"},
		appliesTo:     descriptor.SettingCountDenied,
		appliesToText: "`fixed_window` or `sliding_log`",
		read: func(l *limitReading, v yamlform.Value) bool {
			l.limit.CountDenied = descriptor.DeniedDrop
			if v.Flag() {
				l.limit.CountDenied = descriptor.DeniedCount
			}
			return true
		}},
	{Key: yamlform.Key{Name: "shadow", Type: yamlform.Type{Kind: yamlform.Flag}, Extension: true,
		Doc: "measured but not enforced. Clients do not see it"},
		read: func(l *limitReading, v yamlform.Value) bool {
			return l.enforced(v.Flag(), "shadow", descriptor.EnforcedInShadow)
		}},
	{Key: yamlform.Key{Name: "enforce_percent", Type: yamlform.Between(1, 100), Extension: true,
		Doc: "enforced for this percentage of customers, always the same ones. In shadow for the others"},
		read: func(l *limitReading, v yamlform.Value) bool {
			n, ok := v.Number()
			l.limit.EnforcePercent = uint8(n)
			return l.enforced(ok, "enforce_percent", descriptor.EnforcedForSome) && ok
		}},
	{Key: yamlform.Key{Name: "soft", Type: yamlform.Type{Kind: yamlform.Flag}, Extension: true,
		Doc: "requests over the limit pass, with a warning in the header `x-ratelimit-warning` and in metadata"},
		read: func(l *limitReading, v yamlform.Value) bool {
			return l.enforced(v.Flag(), "soft", descriptor.EnforcedSoftly)
		}},
	{Key: yamlform.Key{Name: "warn_at", Type: yamlform.Between(1, 100), Extension: true,
		Doc: "sends the same warning once this percentage is used"},
		read: func(l *limitReading, v yamlform.Value) bool {
			n, ok := v.Number()
			l.limit.WarnAt = uint8(n)
			return ok
		}},
}

// algorithms lists algorithms for the Doc of a key.
func algorithms(all ...descriptor.Algorithm) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.String()
	}
	return yamlform.List(names, "and")
}

var (
	limitForm       = yamlform.NewForm("limit", "`rate_limit`", limitFields()...)
	listedLimitForm = yamlform.NewForm("limit", "an entry of `rate_limits`", limitFields()...)

	replacesForm = yamlform.NewForm("replaces", "an entry of `replaces`", yamlform.Field[replacedLimit]{
		Key: yamlform.Key{Name: "name", Type: yamlform.Type{Kind: yamlform.Text}, Required: true,
			Doc: "the `name` of another limit"},
		Read: func(p *replacedLimit, v yamlform.Value) {
			name, ok := v.Text()
			p.name, p.bad, p.at = name, !ok, v.Position()
		}})
)

func limitFields() []yamlform.Field[limitReading] {
	fields := make([]yamlform.Field[limitReading], len(limitRows))
	for i, row := range limitRows {
		fields[i] = yamlform.Field[limitReading]{Key: row.Key, Read: func(l *limitReading, v yamlform.Value) {
			l.given = append(l.given, givenKey{row.Name, v})
			if !row.read(l, v) {
				l.bad = true
			}
		}}
	}
	return fields
}

// readNumber reads a number. The type of its key bounds it.
func readNumber[N uint32 | uint64](of func(*limitReading) *N) func(*limitReading, yamlform.Value) bool {
	return func(l *limitReading, v yamlform.Value) bool {
		n, ok := v.Number()
		*of(l) = N(n)
		return ok
	}
}

// limitReading is a rate limit while its map is being read.
type limitReading struct {
	limit     descriptor.Limit
	active    *descriptor.Active
	scale     *descriptor.Scale
	classes   *descriptor.Classes
	unlimited bool
	replaces  []replacedLimit
	given     []givenKey
	whom      string // the key that selects whom the limit denies
	second    string // another such key
	unknown   string // the unit, if it is not a known unit
	bad       bool   // an error is recorded
}

type givenKey struct {
	name  string
	value yamlform.Value
}

// at returns the value of a key.
func (l *limitReading) at(name string) yamlform.Value {
	for i := range l.given {
		if l.given[i].name == name {
			return l.given[i].value
		}
	}
	return yamlform.Value{}
}

func (l *limitReading) has(name string) bool { return l.at(name).Given() }

// replacedLimit is one entry of replaces.
type replacedLimit struct {
	name string
	bad  bool // an error is recorded
	at   yamlform.Position
}

// rateLimit reads a rate_limit and returns its rule, or nil if it has errors.
func (r *ruleReader) rateLimit(v yamlform.Value) *descriptor.Rule {
	l := &r.limit
	if !r.readLimit(limitForm, l, v) {
		return nil
	}
	r.checkReplaces(l.replaces, l.limit.Name)
	made := new(ruleAndLimit)
	made.rule.Name = l.limit.Name
	made.rule.Unlimited = l.unlimited
	for _, p := range l.replaces {
		made.rule.Replaces = append(made.rule.Replaces, p.name)
	}
	if !l.unlimited {
		made.limit[0] = l.limit
		made.rule.Limits = made.limit[:]
		if l.active != nil {
			made.rule.Schedule = &descriptor.Schedule{Active: []*descriptor.Active{l.active}}
		}
		r.setScales(&made.rule, []*descriptor.Scale{l.scale})
		r.setClasses(&made.rule, []*descriptor.Classes{l.classes})
	}
	return &made.rule
}

// rateLimits reads a list of limits and returns one rule with all of them, or nil if there are errors.
func (r *ruleReader) rateLimits(v yamlform.Value) *descriptor.Rule {
	switch {
	case !v.IsList():
		v.Errorf("`rate_limits` must be a list, not %s: start each limit with `- name:`, or write `rate_limit` for one",
			v.What())
		return nil
	case v.Len() == 0:
		v.Errorf("`rate_limits` is empty: write a limit, or leave it out")
		return nil
	case v.Len() > maxLimits:
		v.Errorf("`rate_limits` has %d limits: %d are the most", v.Len(), maxLimits)
		return nil
	}
	rule := new(descriptor.Rule)
	var names []string
	var active []*descriptor.Active
	var scales []*descriptor.Scale
	var classes []*descriptor.Classes
	var replaces []replacedLimit
	for item := range v.Items() {
		l := &r.limit
		if !r.readLimit(listedLimitForm, l, item) {
			continue
		}
		name := l.limit.Name
		switch {
		case l.unlimited:
			l.at("unlimited").Errorf("`unlimited: true` among limits: write `rate_limit: {unlimited: true}` instead of " +
				"`rate_limits`")
			continue
		case name == "":
			if !l.bad {
				item.Errorf("a limit of `rate_limits` without a `name`: answers name the limit that denied")
			}
		case slices.Contains(names, name):
			l.at("name").Errorf("the name %s twice in `rate_limits`", yamlform.Quote(name))
		}
		replaces = append(replaces, l.replaces...)
		if !l.bad {
			for i := range rule.Limits {
				if other := &rule.Limits[i]; l.limit.SameCounter(other) {
					item.Errorf("the limits %s and %s have the same algorithm and window, so they would be one counter: change one "+
						"of them, or keep the smaller one; to try one of them out, write `shadow: true` in it",
						yamlform.Quote(other.Name), yamlform.Quote(name))
					break
				}
			}
		}
		names = append(names, name)
		rule.Limits, active, scales, classes = append(rule.Limits, l.limit), append(active, l.active),
			append(scales, l.scale), append(classes, l.classes)
	}
	if slices.ContainsFunc(active, func(a *descriptor.Active) bool { return a != nil }) {
		rule.Schedule = &descriptor.Schedule{Active: active}
	}
	r.setScales(rule, scales)
	r.setClasses(rule, classes)
	r.checkReplaces(replaces, names...)
	for _, p := range replaces {
		if !slices.Contains(rule.Replaces, p.name) {
			rule.Replaces = append(rule.Replaces, p.name)
		}
	}
	return rule
}

// readLimit reads the map of one limit. It returns false if the map has too little to continue.
func (r *ruleReader) readLimit(form *yamlform.Form[limitReading], l *limitReading, v yamlform.Value) bool {
	*l = limitReading{replaces: l.replaces[:0], given: l.given[:0]}
	read, unknown := yamlform.Read(v, form, l)
	if !read {
		return false
	}
	l.bad = l.bad || unknown
	r.regions = r.regions || l.limit.Regions != nil
	unit := l.at("unit")
	if l.unknown != "" {
		if l.unlimited && r.Lenient() {
			unit.Warnf(yamlform.ReadsToo, "unknown unit %s: it is ignored next to `unlimited: true`", yamlform.Quote(l.unknown))
			unit = yamlform.Value{}
		} else {
			unit.Errorf("%s", unknownUnit(l.unknown))
		}
	}
	inFlight := l.limit.Algorithm == descriptor.Concurrency
	if !l.unlimited {
		l.checkEnforcement()
	}
	switch {
	case l.unlimited && unit.Given():
		unit.Errorf("`unlimited: true` and a `unit`: leave out one of them")
		return false
	case l.unlimited:
		for i := range limitRows {
			if row := &limitRows[i]; !row.unlimited && l.has(row.Name) {
				l.at(row.Name).Errorf("`unlimited: true` and `%s` cannot be combined: nothing is counted, so leave it out",
					row.Name)
			}
		}
	case inFlight && !l.bad:
		l.bad = !l.checkInFlight(v)
	case l.bad && l.has("max_in_flight"):
	case !unit.Given() && !unknown && !inFlight:
		for _, key := range []string{"max_in_flight", "ttl"} {
			if l.has(key) && !l.has("algorithm") {
				l.at(key).Errorf("`%s` without `algorithm: concurrency`: write it too", key)
				return false
			}
		}
		or := ""
		if form == limitForm {
			or = ", or `unlimited: true`"
		}
		v.Errorf("%s without a `unit`: write `unit` (%s) and `requests_per_unit`%s", form.What,
			yamlform.List(descriptor.UnitNames, "or"), or)
		return false
	case !l.bad:
		l.bad = !l.check(v)
	}
	return true
}

// checkInFlight checks a concurrency limit, which has a number of places instead of requests per window.
func (l *limitReading) checkInFlight(at yamlform.Value) bool {
	ok := true
	for i := range limitRows {
		row := &limitRows[i]
		switch {
		case !l.has(row.Name) || row.inFlight() || row.Name == "lease" && !l.limit.Lease:
		case row.Name == "lease":
			l.at(row.Name).Errorf("`lease` cannot be used with `concurrency`: a place is for one request, so it cannot be " +
				"taken in advance")
			ok = false
		default:
			l.at(row.Name).Errorf("`%s` cannot be used with `concurrency`: it has `max_in_flight` and `ttl`", row.Name)
			ok = false
		}
	}
	for _, key := range []string{"max_in_flight", "ttl"} {
		if ok && !l.has(key) {
			at.Errorf("`algorithm: concurrency` without `%s`: write `max_in_flight` (how many places) and `ttl` (after how "+
				"long a lost one is free again, such as `5m`)", key)
			return false
		}
	}
	if !ok {
		return false
	}
	if err := l.limit.Compile(); err != nil {
		l.cannotCount(at, err)
		return false
	}
	return true
}

// inFlight reports whether a concurrency limit may have the key.
func (row *limitRow) inFlight() bool {
	return row.appliesTo == descriptor.SettingInFlight || row.Name == "algorithm" || row.Name == "name" ||
		row.Name == "replaces" || row.Name == "unlimited" ||
		row.Name == "warn_at" || row.Name == "regions" || slices.Contains(enforcementKeys, row.Name)
}

// check reports whether the keys of a limit fit together, and fills in its defaults and its arithmetic. at is the
// limit's map.
func (l *limitReading) check(at yamlform.Value) bool {
	ok := true
	reject := func(key, format string, args ...any) {
		l.at(key).Errorf(format, args...)
		ok = false
	}
	limit := &l.limit
	for i := range limitRows {
		row := &limitRows[i]
		if row.appliesTo == 0 || !l.has(row.Name) || limit.Has(row.appliesTo) {
			continue
		}
		this := "`" + limit.Algorithm.String() + "`"
		switch {
		case !l.has("algorithm"):
			this += ", the default algorithm"
		case row.Name == "align" && limit.Algorithm == descriptor.TokenBucket:
			this += " with `refill: greedy`"
		}
		reject(row.Name, "`%s` cannot be used with %s: it is for %s", row.Name, this, row.appliesToText)
	}
	if !ok {
		return false
	}
	if limit.Window.Location != nil {
		switch {
		case limit.Window.Unit.Length() < descriptor.Day.Length():
			reject("calendar", "`calendar` needs a `unit` of a day or longer, not `%s`", limit.Window.Unit)
		case limit.FirstHit:
			reject("align", "`calendar` and `align: first_hit` cannot be combined: a window can only follow one of them")
		}
	}
	switch {
	case !l.has("week_start"):
	case limit.Window.Unit != descriptor.Week:
		reject("week_start", "`week_start` is for `unit: week`, not `%s`", limit.Window.Unit)
	case limit.Window.Location == nil:
		reject("week_start", "`week_start` without `calendar`: write the time zone of the weeks too, such as `calendar: UTC`")
	}
	switch {
	case limit.Penalty == nil:
	case limit.Lease:
		reject("lease",
			"`lease` and `penalty` cannot be combined: a penalty starts with a denial, and only the store sees every denial; "+
				"leave out one of them")
	case limit.Enforcement == descriptor.EnforcedSoftly:
		reject("soft", "`soft` and `penalty` cannot be combined: a soft limit denies nothing; leave out one of them")
	}
	if !l.has("burst") && limit.Algorithm == descriptor.LeakyBucket {
		limit.Burst = limit.Requests
	}
	if l.has("burst") && limit.Algorithm == descriptor.TokenBucket && limit.Burst == 0 {
		reject("burst", "`burst` of a `token_bucket` must be at least 1: it is what the bucket holds")
	}
	if !ok {
		return false
	}
	if !l.share() {
		return false
	}
	if err := limit.Compile(); err != nil {
		l.cannotCount(at, err)
		return false
	}
	return l.checkScale()
}

// cannotCount records that a limit cannot be counted, at the position of the key that the error names. If that key is
// absent, its default comes from requests_per_unit, so the error is there.
func (l *limitReading) cannotCount(at yamlform.Value, err error) {
	var wrong *descriptor.LimitError
	if !errors.As(err, &wrong) {
		at.Errorf("%v", err)
		return
	}
	for _, key := range []string{wrong.Key, "requests_per_unit"} {
		if l.has(key) {
			at = l.at(key)
			break
		}
	}
	at.Errorf("`%s`: %s", wrong.Key, wrong.Reason)
}

// checkReplaces checks the `replaces` of a rule whose limits have these names.
func (r *ruleReader) checkReplaces(replaces []replacedLimit, names ...string) {
	for _, p := range replaces {
		switch {
		case p.bad:
		case p.name == "":
			r.ErrorAt(p.at, "an entry of `replaces` without a name: write `- name: NAME`, the `name` of another rate limit")
		case slices.Contains(names, p.name):
			r.ErrorAt(p.at, "the rate limit %s replaces itself: give the name of another one", yamlform.Quote(p.name))
		}
	}
}

func (l *limitReading) readReplaces(v yamlform.Value) {
	if !v.IsList() {
		v.Errorf("`replaces` must be a list, not %s: start each entry with `- name:`", v.What())
		return
	}
	for item := range v.Items() {
		p := replacedLimit{at: item.Position()}
		read, unknown := yamlform.Read(item, replacesForm, &p)
		p.bad = p.bad || unknown
		if read {
			l.replaces = append(l.replaces, p)
		}
	}
}
