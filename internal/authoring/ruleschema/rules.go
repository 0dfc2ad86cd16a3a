package ruleschema

import (
	"maps"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Rules returns the schema of rule files. In a file with several YAML documents it applies to each.
func Rules() *jsonschema.Schema {
	s := of(config.Rules())
	s.Title = "Rules of ratelimitd"
	s.Description = "A domain and its limits. Read by `ratelimitd serve`, and by envoyproxy/ratelimit where no " +
		"extension is used."
	relateDescriptor(s.Definitions["descriptor"])
	s.Definitions["file"].Properties["headers"].AnyOf[0] = headers()
	relateHeader(s.Definitions["header"])
	keys := config.MaxBucketOrder
	s.Definitions["quota_buckets"].Properties["order"].AnyOf[0].MaxItems = &keys

	limit := s.Definitions["limit"]
	relateLimit(limit)
	// The list's limits have names and no `unlimited`; the single one may be unlimited instead of having a unit. A
	// concurrency limit has no unit.
	listed := *limit
	listed.Required = []string{"name"}
	listed.AllOf = append(listed.AllOf[:len(listed.AllOf):len(listed.AllOf)], notNull("name"), never("unlimited", yes()))
	withUnit := &jsonschema.Schema{Required: []string{"unit"},
		AllOf: []*jsonschema.Schema{notNull("unit"), never("unlimited", yes())}}
	inFlight := is("algorithm", descriptor.Concurrency.String())
	listed.AnyOf = []*jsonschema.Schema{withUnit, inFlight}
	s.Definitions["listed"] = &listed
	limit.AnyOf = []*jsonschema.Schema{
		withUnit,
		inFlight,
		{Required: []string{"unlimited"},
			AllOf: []*jsonschema.Schema{{Properties: map[string]*jsonschema.Schema{"unlimited": yes()}}, {Not: has("unit")}}},
	}
	one, most := 1, 16
	s.Definitions["descriptor"].Properties["rate_limits"].AnyOf[0] = &jsonschema.Schema{Type: "array", MinItems: &one,
		MaxItems: &most, Items: ref("listed")}
	return s
}

// headers is the list of a domain's headers.
func headers() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "array", UniqueItems: true,
		Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{enum(descriptor.HeaderFamilyNames), ref("header")}}}
}

// relateHeader adds two restrictions: the names that no header may have, and that only an answer to a denied request
// can have a time to wait.
func relateHeader(h *jsonschema.Schema) {
	name, value, of := config.MaxHeaderName, config.MaxHeaderValue, config.MaxHeaderOf
	h.AllOf = append(h.AllOf,
		never("name", anyCase(slices.Concat(config.ReservedHeaders, config.ServiceHeaders))),
		&jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"name": {MaxLength: &name}, "value": {MaxLength: &value},
			"of": {MaxItems: &of}}},
		&jsonschema.Schema{
			If:   is("when", "passed"),
			Then: never("value", &jsonschema.Schema{Type: "string", Pattern: `\{retry_after\}`}),
		})
}

// relateDescriptor adds which keys of a descriptor exclude and require each other.
func relateDescriptor(d *jsonschema.Schema) {
	matchers := slices.Sorted(maps.Keys(config.Matchers()))
	for i, a := range matchers {
		for _, b := range matchers[:i] {
			d.AllOf = append(d.AllOf, not(both(a, b)))
		}
	}
	d.AllOf = append(d.AllOf, not(both("rate_limit", "rate_limits")))
	star := func(key string) *jsonschema.Schema {
		return &jsonschema.Schema{Required: []string{key},
			Properties: map[string]*jsonschema.Schema{key: {Type: "string", Pattern: `\*`}}}
	}
	d.AllOf = append(d.AllOf,
		&jsonschema.Schema{
			If: &jsonschema.Schema{Required: []string{"share_threshold"},
				Properties: map[string]*jsonschema.Schema{"share_threshold": yes()}},
			Then: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{star("value"), star("key"), has("values"), has("value_regex"),
				has("value_cidr")}},
		},
		&jsonschema.Schema{
			If: star("key"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{not(has("values")), not(has("value_regex")),
				not(has("value_cidr"))}},
		},
		&jsonschema.Schema{ // addresses have no case
			If: given("fold_case"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{not(has("value_cidr")), not(star("key")),
				never("group", &jsonschema.Schema{Type: "string", Pattern: "^ip"})}},
		},
		&jsonschema.Schema{ // a capture group is one of an expression, and a network one of other values than exact ones
			If: has("group"),
			Then: &jsonschema.Schema{
				AllOf: []*jsonschema.Schema{not(given("share_threshold")), not(given("condition")), not(star("key"))},
				AnyOf: []*jsonschema.Schema{
					{AllOf: []*jsonschema.Schema{captures(), has("value_regex"), not(given("overridable")), not(given("usage"))}},
					{AllOf: []*jsonschema.Schema{not(captures()), not(has("values")),
						{AnyOf: []*jsonschema.Schema{star("value"), not(has("value"))}}}},
				},
			},
		},
		&jsonschema.Schema{
			If:   has("on_error"),
			Then: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{has("rate_limit"), has("rate_limits")}},
		},
		&jsonschema.Schema{If: costs(weighted()), Then: given("reservations")},
		&jsonschema.Schema{
			If: given("overridable"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				never("rate_limit", scaled()),
				never("rate_limits", &jsonschema.Schema{Type: "array", Contains: scaled()}),
			}},
		},
		&jsonschema.Schema{
			If: costs(multiplied()),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				never("rate_limit", takesOneAnyway()),
				never("rate_limits", &jsonschema.Schema{Type: "array", Contains: takesOneAnyway()}),
			}},
		},
		&jsonschema.Schema{
			If: given("reservations"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				never("rate_limit", withoutReservations()),
				never("rate_limits", &jsonschema.Schema{Type: "array", Contains: withoutReservations()}),
			}},
		})
}

// captures is a descriptor with a capture group.
func captures() *jsonschema.Schema {
	return &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"group": {Type: "string", Pattern: `^\$`}}}
}

// relateLimit adds which keys of a limit go with which algorithm and unit.
func relateLimit(l *jsonschema.Schema) {
	l.Required = nil
	l.AllOf = nil
	// an empty unit is the same as none
	l.Properties["unit"].AnyOf[0].Enum = append(l.Properties["unit"].AnyOf[0].Enum, "")
	for _, b := range config.OnlyFor() {
		algorithm := enum(b.Algorithms)
		then := &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"algorithm": algorithm},
			Required: []string{"algorithm"}}
		if b.Algorithms[0] == descriptor.AlgorithmNames[0] { // the default need not be written
			algorithm.Enum = append(algorithm.Enum, nil)
			then.Required = nil
		}
		l.AllOf = append(l.AllOf, &jsonschema.Schema{If: has(b.Key), Then: then})
	}
	const bucket = "token_bucket"
	zero := 1.0
	l.AllOf = append(l.AllOf,
		&jsonschema.Schema{ // a bucket that holds nothing
			If:   is("algorithm", bucket),
			Then: &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{"burst": {Minimum: &zero}}},
		},
		&jsonschema.Schema{ // aligned, as a token bucket, only where it refills at intervals
			If:   &jsonschema.Schema{AllOf: []*jsonschema.Schema{has("align"), is("algorithm", bucket)}},
			Then: is("refill", "interval"),
		},
		&jsonschema.Schema{If: has("scale"), Then: never("lease", yes())},
		&jsonschema.Schema{ // a window on the clock, in which denied hits do not count
			If: has("classes"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				not(has("penalty")), never("lease", yes()), never("count_denied", yes()),
				never("align", &jsonschema.Schema{Enum: []any{"first_hit"}}),
			}},
		},
		concurrency(),
		&jsonschema.Schema{ // a calendar's windows are a day long or more, and start on it
			If: has("calendar"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				{Properties: map[string]*jsonschema.Schema{"unit": {Not: anyCase([]string{"millisecond", "second", "minute",
					"hour"})}}},
				never("align", &jsonschema.Schema{Enum: []any{"first_hit"}}),
			}},
		},
		&jsonschema.Schema{ // only weeks on a calendar start with a chosen day
			If: has("week_start"),
			Then: &jsonschema.Schema{AllOf: []*jsonschema.Schema{
				has("calendar"),
				{Properties: map[string]*jsonschema.Schema{"unit": anyCase([]string{"week"})}},
			}},
		})
	shadow := &jsonschema.Schema{Required: []string{"shadow"}, Properties: map[string]*jsonschema.Schema{"shadow": yes()}}
	soft := &jsonschema.Schema{Required: []string{"soft"}, Properties: map[string]*jsonschema.Schema{"soft": yes()}}
	share := has("enforce_percent")
	together := func(a, b *jsonschema.Schema) *jsonschema.Schema {
		return not(&jsonschema.Schema{AllOf: []*jsonschema.Schema{a, b}})
	}
	leased := &jsonschema.Schema{Required: []string{"lease"}, Properties: map[string]*jsonschema.Schema{"lease": yes()}}
	l.AllOf = append(l.AllOf, together(has("penalty"), leased), together(has("penalty"), soft))
	// whom the limit denies
	l.AllOf = append(l.AllOf, together(shadow, soft), together(shadow, share), together(soft, share),
		together(has("replaces"), &jsonschema.Schema{AnyOf: []*jsonschema.Schema{shadow, share}}))
	// Next to `unlimited: true`, keys about counting are not allowed.
	var counting []*jsonschema.Schema
	for _, name := range config.CountingKeys() {
		counting = append(counting, has(name))
	}
	l.AllOf = append(l.AllOf, &jsonschema.Schema{
		If: &jsonschema.Schema{Required: []string{"unlimited"},
			Properties: map[string]*jsonschema.Schema{"unlimited": yes()}},
		Then: not(&jsonschema.Schema{AnyOf: counting}),
	})
}

// given is a map with this key, not null and not false.
func given(key string) *jsonschema.Schema {
	no := append([]any{nil, false}, words(yamlform.FlagWords(false))...)
	return &jsonschema.Schema{Required: []string{key},
		Properties: map[string]*jsonschema.Schema{key: {Not: &jsonschema.Schema{Enum: no}}}}
}

// withoutReservations is a limit that cannot have reservations.
func withoutReservations() *jsonschema.Schema {
	set := func(key string) *jsonschema.Schema {
		return &jsonschema.Schema{Required: []string{key}, Properties: map[string]*jsonschema.Schema{key: yes()}}
	}
	return &jsonschema.Schema{Type: "object", AnyOf: []*jsonschema.Schema{
		is("algorithm", "leaky_bucket"), has("active"), has("penalty"), has("classes"), set("lease"), set("count_denied"),
		set("unlimited"),
	}}
}

// costs is a descriptor whose `cost` is like this.
func costs(how *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Required: []string{"cost"}, Properties: map[string]*jsonschema.Schema{"cost": how}}
}

// weighted is a `cost` with the weight of an amount.
func weighted() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object",
		Not: &jsonschema.Schema{AdditionalProperties: &jsonschema.Schema{Types: []string{"object", "null"}}}}
}

// multiplied is a `cost` of hits: a number, or a map with a table.
func multiplied() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "integer"},
		{Type: "object", Not: &jsonschema.Schema{AdditionalProperties: &jsonschema.Schema{Types: []string{"number",
			"null"}}}},
	}}
}

// scaled is a limit that depends on a number of the request.
func scaled() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", AllOf: []*jsonschema.Schema{has("scale")}}
}

// takesOneAnyway is a limit under which no hit counts for more than one.
func takesOneAnyway() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", AnyOf: []*jsonschema.Schema{
		is("algorithm", descriptor.Concurrency.String()),
		{Required: []string{"unlimited"}, Properties: map[string]*jsonschema.Schema{"unlimited": yes()}},
	}}
}

// concurrency adds which keys a concurrency limit has.
func concurrency() *jsonschema.Schema {
	then := &jsonschema.Schema{AllOf: []*jsonschema.Schema{has("max_in_flight"), has("ttl"), never("lease", yes())}}
	for _, key := range config.NotInFlight() {
		then.AllOf = append(then.AllOf, not(has(key)))
	}
	return &jsonschema.Schema{If: is("algorithm", descriptor.Concurrency.String()), Then: then}
}

// has is a map with this key, not null and not empty.
func has(key string) *jsonschema.Schema {
	return &jsonschema.Schema{Required: []string{key},
		Properties: map[string]*jsonschema.Schema{key: {Not: &jsonschema.Schema{Enum: []any{nil, ""}}}}}
}

// is is a map whose key has this value.
func is(key, value string) *jsonschema.Schema {
	return &jsonschema.Schema{Required: []string{key},
		Properties: map[string]*jsonschema.Schema{key: {Enum: []any{value}}}}
}

func both(a, b string) *jsonschema.Schema {
	return &jsonschema.Schema{AllOf: []*jsonschema.Schema{has(a), has(b)}}
}

func not(s *jsonschema.Schema) *jsonschema.Schema { return &jsonschema.Schema{Not: s} }

func notNull(key string) *jsonschema.Schema {
	return &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{key: {Not: &jsonschema.Schema{Enum: []any{nil,
		""}}}}}
}

// never is a map whose key does not have such a value.
func never(key string, value *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Properties: map[string]*jsonschema.Schema{key: {Not: value}}}
}

// yes is true, as YAML 1.1 wrote it too.
func yes() *jsonschema.Schema {
	return &jsonschema.Schema{Enum: append([]any{true}, words(yamlform.FlagWords(true))...)}
}
