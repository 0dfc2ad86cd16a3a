package ruletest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// defaultStart is the start of a case without one. A window of every unit starts at this instant: it is 15,330 days
// after the epoch, the smallest common multiple of weeks, of months of 30 days and of years of 365 days. So an offset
// in a test is also the offset in the window.
var defaultStart = time.Unix(15_330*24*60*60, 0).UTC()

const maxRepeat = 10_000_000

// testFile is one test file.
type testFile struct {
	name     string
	rules    []ruleRef // empty for the file of the same name without _test
	merge    bool
	domain   string
	start    time.Time
	settings *limiter.Settings

	overrides []override.Placed // active in every case
	cases     []*testCase
}

// ruleRef names a rule file that a test file tests.
type ruleRef struct {
	name string
	at   yamlform.Position
}

// testCase is a sequence of steps. It starts with unused counters.
type testCase struct {
	name  string
	at    yamlform.Position
	start time.Time
	// settings are shared by the cases that do not set any.
	settings  *limiter.Settings
	overrides []override.Placed // overrides in addition to the file's
	steps     []*step
}

// step is a request, or the same one several times, and the expected answer.
type step struct {
	at      yamlform.Position
	offset  time.Duration // time of the first request, from the case's start
	repeat  int
	every   time.Duration   // between two requests
	request limiter.Request // without a domain: of the only one there is
	want    expectation
}

// want is an expected value and its position. A nil one is not checked.
type want[T any] struct {
	value T
	at    yamlform.Position
}

// verdict has the expectations about a request, or about one of its descriptors.
type verdict struct {
	code      *want[limiter.Code]
	rule      *want[string]
	limit     *want[uint64]
	remaining *want[uint64]
	reset     *want[time.Duration]
	wait      *want[time.Duration]
	delay     *want[time.Duration]

	overridden *want[bool]
	wouldDeny  *want[[]string] // names of limits
}

// expectation is the expected answer of a step.
type expectation struct {
	verdict
	passed      *want[int] // how many repeated requests pass
	headers     []wantHeader
	descriptors []verdict // expectations about the request's descriptors, in order; empty if not checked
	at          yamlform.Position
}

type wantHeader struct {
	name  string
	value *string // nil if the header must be absent
	at    yamlform.Position
}

// A map while it is being read, before defaults from further out are known.
type (
	fileReading struct {
		testFile
		settingsAt, casesAt yamlform.Value
	}
	caseReading struct {
		testCase
		request             requestReading
		settingsAt, stepsAt yamlform.Value
	}
	stepReading struct {
		step
		when    yamlform.Value // value of at
		since   yamlform.Value // value of after
		request requestReading
		expect  bool
	}
	// requestReading is the request of a step. A case may give parts of it for all its steps.
	requestReading struct {
		domain      string
		descriptors []limiter.Descriptor
		bad         bool // the descriptors were given and cannot be used
		hits        uint32
		all         descriptorReading // defaults for all descriptors
	}
	descriptorReading struct {
		limiter.Descriptor
		weights []yamlform.Value // of hits, peek and refund: a descriptor has one of them
		unit    bool             // the limit has one
	}
)

// The language of test files. Each row is one key: it reads the key's value, and the schema and the table in
// docs/reference/test-keys.md come from it too.
var (
	fileForm       *yamlform.Form[fileReading]
	settingsForm   *yamlform.Form[limiter.Settings]
	caseForm       *yamlform.Form[caseReading]
	stepForm       *yamlform.Form[stepReading]
	descriptorForm *yamlform.Form[descriptorReading]
	limitForm      *yamlform.Form[descriptorReading]
	expectForm     *yamlform.Form[expectation]
	verdictForm    *yamlform.Form[verdict]

	// places are the maps that a key may really belong to, the likeliest first.
	places []*yamlform.Map
)

// Forms of text in test files, as regular expressions for the whole.
const (
	spanForm    = `0|([0-9]+(\.[0-9]+)?(w|d|h|ms|m|us|s))+`
	instantForm = `[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].*)?`
)

// Types of values.
var (
	textType    = yamlform.Type{Kind: yamlform.Text}
	flagType    = yamlform.Type{Kind: yamlform.Flag}
	spanType    = yamlform.Type{Kind: yamlform.Text, Pattern: spanForm, Form: "a duration such as 1d12h or 2.5s"}
	instantType = yamlform.Type{Kind: yamlform.Text, Pattern: instantForm,
		Form: "a time (RFC 3339), or a date (midnight UTC)"}
	codeType = yamlform.Type{Kind: yamlform.Choice, Names: codeNames, AnyCase: true}
)

// spanOr is a duration, or a text that has another form.
func spanOr(pattern, words string) yamlform.Type {
	t := spanType
	t.Pattern += "|" + pattern
	t.Form += ", or " + words
	return t
}

func init() {
	fileForm = yamlform.NewForm("file", "the top of a test file", fileKeys()...)
	settingsForm = yamlform.NewForm("settings", "`settings`", settingsKeys()...)
	caseForm = yamlform.NewForm("case", "a case", caseKeys()...)
	stepForm = yamlform.NewForm("step", "a step", stepKeys()...)
	descriptorForm = yamlform.NewForm("descriptor", "a descriptor", descriptorKeys()...)
	limitForm = yamlform.NewForm("limit", "`limit`", limitKeys()...)
	verdictForm = yamlform.NewForm("verdict", "what is expected of a descriptor",
		verdictFields(func(v *verdict) *verdict { return v })...)
	expectForm = yamlform.NewForm("expect", "`expect`", expectKeys()...)
	places = []*yamlform.Map{
		&stepForm.Map, &expectForm.Map, &caseForm.Map, &fileForm.Map, &settingsForm.Map, &descriptorForm.Map, &limitForm.Map,
		override.Item(),
	}
}

// fileKeys are the keys of a test file.
func fileKeys() []yamlform.Field[fileReading] {
	return []yamlform.Field[fileReading]{
		{Key: yamlform.Key{Name: "rules", Type: yamlform.Type{Kind: yamlform.TextOrList},
			Default: "the file of the same name without `_test`", Doc: "the rule files, relative to the test file"},
			Read: func(f *fileReading, v yamlform.Value) { f.rules = readRules(v) }},
		{Key: yamlform.Key{Name: "merge_domains", Type: flagType,
			Doc: "as `MERGE_DOMAIN_CONFIG`"},
			Read: func(f *fileReading, v yamlform.Value) { f.merge = v.Flag() }},
		{Key: yamlform.Key{Name: "domain", Type: textType,
			Default: "the only one of the rules", Doc: "the domain of the requests"},
			Read: func(f *fileReading, v yamlform.Value) { f.domain = readName(v, "`domain`") }},
		{Key: yamlform.Key{Name: "start", Type: instantType,
			Default: defaultStart.Format(time.RFC3339),
			Doc:     "when cases start. The default is the start of a window of every unit"},
			Read: func(f *fileReading, v yamlform.Value) { f.start = readInstant(v) }},
		{Key: yamlform.Key{Name: "settings", Type: yamlform.MapOf("settings"),
			Doc: "for all cases"},
			Read: func(f *fileReading, v yamlform.Value) { f.settingsAt = v }},
		{Key: yamlform.Key{Name: "overrides", Type: yamlform.MapsOf("override"),
			Doc: "for all cases"},
			Read: func(f *fileReading, v yamlform.Value) { f.overrides = override.ReadList(v) }},
		{Key: yamlform.Key{Name: "cases", Type: yamlform.MapsOf("case"), Required: true,
			Doc: "the tests"},
			Read: func(f *fileReading, v yamlform.Value) { f.casesAt = v }},
	}
}

// settingsKeys are the settings of the service that a test may change.
func settingsKeys() []yamlform.Field[limiter.Settings] {
	admission := yamlform.OneOf(descriptor.AdmissionNames...)
	admission.AnyCase = true
	headers := yamlform.SomeOf(descriptor.HeaderFamilyNames...)
	headers.AnyCase = true
	return []yamlform.Field[limiter.Settings]{
		{Key: yamlform.Key{Name: "shadow_mode", Type: flagType, Doc: "as `SHADOW_MODE`"},
			Read: func(s *limiter.Settings, v yamlform.Value) { s.Shadow = v.Flag() }},
		{Key: yamlform.Key{Name: "quota_mode", Type: flagType, Doc: "as `QUOTA_MODE`"},
			Read: func(s *limiter.Settings, v yamlform.Value) { s.Quota = v.Flag() }},
		{Key: yamlform.Key{Name: "admission", Type: admission, Doc: "for domains without `admission`"},
			Read: func(s *limiter.Settings, v yamlform.Value) {
				i, _ := v.Choice()
				s.Admission = descriptor.Admission(i)
			}},
		{Key: yamlform.Key{Name: "stop_when_over", Type: flagType, Doc: "as `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`"},
			Read: func(s *limiter.Settings, v yamlform.Value) { s.StopWhenOver = v.Flag() }},
		{Key: yamlform.Key{Name: "calendar_months", Type: flagType, Doc: "as `USE_CALENDAR_MONTH_RATE_LIMIT`"},
			Read: func(s *limiter.Settings, v yamlform.Value) { s.CalendarMonths = v.Flag() }},
		{Key: yamlform.Key{Name: "headers", Type: headers, Doc: "for domains without `headers`"},
			Read: func(s *limiter.Settings, v yamlform.Value) {
				s.Headers = 0
				for item := range v.Items() {
					if i, ok := item.Choice(); ok {
						s.Headers |= 1 << i
					}
				}
			}},
	}
}

// caseKeys are the keys of a case.
func caseKeys() []yamlform.Field[caseReading] {
	return append([]yamlform.Field[caseReading]{
		{Key: yamlform.Key{Name: "name", Type: textType, Required: true, Doc: "what the case shows"},
			Read: func(c *caseReading, v yamlform.Value) { c.name = readName(v, "`name`") }},
		{Key: yamlform.Key{Name: "start", Type: instantType, Default: "the file's", Doc: "when this case starts"},
			Read: func(c *caseReading, v yamlform.Value) { c.start = readInstant(v) }},
		{Key: yamlform.Key{Name: "settings", Type: yamlform.MapOf("settings"),
			Doc: "settings that differ for this case"},
			Read: func(c *caseReading, v yamlform.Value) { c.settingsAt = v }},
		{Key: yamlform.Key{Name: "overrides", Type: yamlform.MapsOf("override"),
			Doc: "added to the file's, or instead of those for the same rule, limit and entries"},
			Read: func(c *caseReading, v yamlform.Value) { c.overrides = override.ReadList(v) }},
		{Key: yamlform.Key{Name: "steps", Type: yamlform.MapsOf("step"), Required: true, Doc: "the requests, in order"},
			Read: func(c *caseReading, v yamlform.Value) { c.stepsAt = v }},
	}, subjectFields("for steps without `domain`",
		func(c *caseReading) *requestReading { return &c.request })...)
}

// stepKeys are the keys of a step.
func stepKeys() []yamlform.Field[stepReading] {
	return append([]yamlform.Field[stepReading]{
		{Key: yamlform.Key{Name: "at", Type: spanOr(instantForm, "a time"),
			Default: "the end of the previous step",
			Doc:     "when the request is sent, as time since the start or a point in time"},
			Read: func(s *stepReading, v yamlform.Value) { s.when = v }},
		{Key: yamlform.Key{Name: "after", Type: spanType,
			Doc: "the same, as time since the previous step's last request"},
			Read: func(s *stepReading, v yamlform.Value) { s.since = v }},
		{Key: yamlform.Key{Name: "repeat", Type: yamlform.Between(1, maxRepeat), Default: "1",
			Doc: "how often it is sent"},
			Read: func(s *stepReading, v yamlform.Value) {
				if count, ok := v.Number(); ok {
					s.repeat = int(count)
				}
			}},
		{Key: yamlform.Key{Name: "every", Type: spanType, Default: "0", Doc: "the time between these requests"},
			Read: func(s *stepReading, v yamlform.Value) { s.every, _ = readSpan(v, "every") }},
		{Key: yamlform.Key{Name: "expect", Type: yamlform.Type{Kind: yamlform.Nested, Of: "expect", Names: codeNames,
			AnyCase: true}, Required: true,
			Doc: "the expected answer"},
			Read: func(s *stepReading, v yamlform.Value) { s.expect, s.want = true, readExpectation(v) }},
		{Key: yamlform.Key{Name: "hits", Type: yamlform.Uint32(1), Default: "1", Doc: "for each descriptor"},
			Read: func(s *stepReading, v yamlform.Value) {
				if v.Written() == "0" {
					v.Errorf("`hits: 0` of a request means 1: write `peek: true` to look without counting")
					return
				}
				if hits, ok := v.Number(); ok {
					s.request.hits = uint32(hits)
					s.request.all.weights = append(s.request.all.weights, v)
				}
			}},
	}, append(subjectFields("the domain", func(s *stepReading) *requestReading { return &s.request }),
		weightFields(func(s *stepReading) *descriptorReading { return &s.request.all })...)...)
}

// descriptorKeys are the keys of a descriptor of a step.
func descriptorKeys() []yamlform.Field[descriptorReading] {
	return append([]yamlform.Field[descriptorReading]{
		{Key: yamlform.Key{Name: "entries", Type: entries.Type, Doc: "the descriptor's entries"},
			Read: func(d *descriptorReading, v yamlform.Value) { d.Entries, _ = entries.Read(v) }},
		{Key: yamlform.Key{Name: "hits", Type: yamlform.Between(0, math.MaxUint64), Default: "the step's",
			Doc: "as in a step. 0 is `peek: true`"},
			Read: func(d *descriptorReading, v yamlform.Value) {
				if hits, ok := v.Number(); ok {
					d.Hits, d.HasHits = hits, true
					d.weights = append(d.weights, v)
				}
			}},
	}, weightFields(func(d *descriptorReading) *descriptorReading { return d })...)
}

// limitKeys are the keys of a limit that a request carries.
func limitKeys() []yamlform.Field[descriptorReading] {
	return []yamlform.Field[descriptorReading]{
		{Key: yamlform.Key{Name: "requests_per_unit", Type: yamlform.Uint32(0), Default: "0", Doc: "requests per window"},
			Read: func(d *descriptorReading, v yamlform.Value) {
				count, _ := v.Number()
				d.Limit.Requests = uint32(count)
			}},
		{Key: yamlform.Key{Name: "unit", Type: yamlform.Type{Kind: yamlform.Choice, Names: descriptor.WireUnitNames,
			AnyCase: true}, Required: true, Doc: "the window"},
			Read: func(d *descriptorReading, v yamlform.Value) {
				d.unit = true
				if i, ok := v.Choice(); ok {
					d.Limit.Unit = int32(descriptor.ParseUnit(descriptor.WireUnitNames[i]))
				}
			}},
	}
}

// expectKeys are the keys of an expected answer.
func expectKeys() []yamlform.Field[expectation] {
	return append(verdictFields(func(e *expectation) *verdict { return &e.verdict }), []yamlform.Field[expectation]{
		{Key: yamlform.Key{Name: "passed", Type: yamlform.Between(0, maxRepeat),
			Doc: "how many repeated requests pass"},
			Read: func(e *expectation, v yamlform.Value) {
				if count, ok := v.Number(); ok {
					e.passed = &want[int]{int(count), v.Position()}
				}
			}},
		{Key: yamlform.Key{Name: "headers", Type: yamlform.Type{Kind: yamlform.AnyMap},
			Doc: "response headers. `null`: the header must be absent"},
			Read: func(e *expectation, v yamlform.Value) { e.headers = readHeaders(v) }},
		{Key: yamlform.Key{Name: "descriptors", Type: yamlform.Type{Kind: yamlform.ListOf, Of: "verdict", Names: codeNames,
			AnyCase: true},
			Doc: "one for each. `null`: any answer"},
			Read: func(e *expectation, v yamlform.Value) {
				if !v.IsList() {
					v.Errorf("`descriptors` in `expect` must be a list, one entry for each descriptor of the request, not %s",
						v.What())
					return
				}
				for item := range v.Items() {
					var of verdict
					switch {
					case item.IsNull():
					case item.IsScalar():
						of.code = readCode(item)
					default:
						yamlform.Read(item, verdictForm, &of)
					}
					e.descriptors = append(e.descriptors, of)
				}
			}},
	}...)
}

// Language returns the language of test files.
func Language() yamlform.Language {
	return yamlform.Language{Maps: []*yamlform.Map{
		&fileForm.Map, &settingsForm.Map, &caseForm.Map, &stepForm.Map, &descriptorForm.Map, &limitForm.Map, &expectForm.Map,
		&verdictForm.Map, override.Item(),
	}}
}

// subjectFields are the keys for the domain and the descriptors of a request.
func subjectFields[T any](domain string, of func(*T) *requestReading) []yamlform.Field[T] {
	return []yamlform.Field[T]{
		{Key: yamlform.Key{Name: "domain", Type: textType, Doc: domain},
			Read: func(t *T, v yamlform.Value) { of(t).domain = readName(v, "`domain`") }},
		{Key: yamlform.Key{Name: "descriptors", Type: yamlform.Type{Kind: yamlform.Anything,
			Form: "a descriptor, or a list of them"},
			Doc: "in one of the forms below"},
			Read: func(t *T, v yamlform.Value) { of(t).readDescriptors(v) }},
	}
}

// weightFields are the keys for the hits that a descriptor adds, and for the limit that it carries.
func weightFields[T any](of func(*T) *descriptorReading) []yamlform.Field[T] {
	return []yamlform.Field[T]{
		{Key: yamlform.Key{Name: "peek", Type: flagType, Doc: "read the counter without counting"},
			Read: func(t *T, v yamlform.Value) {
				if d := of(t); v.Flag() {
					d.HasHits, d.Hits = true, 0
					d.weights = append(d.weights, v)
				}
			}},
		{Key: yamlform.Key{Name: "refund", Type: yamlform.Between(1, backend.MaxHits), Doc: "hits to return"},
			Read: func(t *T, v yamlform.Value) {
				if hits, ok := v.Number(); ok {
					d := of(t)
					d.HasHits, d.Hits, d.Refund = true, hits, true
					d.weights = append(d.weights, v)
				}
			}},
		{Key: yamlform.Key{Name: "limit", Type: yamlform.MapOf("limit"), Doc: "the limit that the request carries"},
			Read: func(t *T, v yamlform.Value) {
				d := of(t)
				d.HasLimit, _ = yamlform.Read(v, limitForm, d)
				if d.HasLimit && !d.unit {
					v.Errorf("`limit` without a `unit`: write %s", yamlform.List(descriptor.WireUnitNames, "or"))
				}
			}},
	}
}

// verdictFields are the keys for the expected answer to a request or a descriptor.
func verdictFields[T any](of func(*T) *verdict) []yamlform.Field[T] {
	span := func(name, doc string, set func(*verdict, *want[time.Duration])) yamlform.Field[T] {
		return yamlform.Field[T]{Key: yamlform.Key{Name: name, Type: spanType, Doc: doc}, Read: func(t *T, v yamlform.Value) {
			if d, ok := readSpan(v, name); ok {
				set(of(t), &want[time.Duration]{d, v.Position()})
			}
		}}
	}
	count := func(name, doc string, set func(*verdict, *want[uint64])) yamlform.Field[T] {
		return yamlform.Field[T]{Key: yamlform.Key{Name: name, Type: yamlform.Uint53(0), Doc: doc},
			Read: func(t *T, v yamlform.Value) {
				if n, ok := v.Number(); ok {
					set(of(t), &want[uint64]{n, v.Position()})
				}
			}}
	}
	return []yamlform.Field[T]{
		{Key: yamlform.Key{Name: "code", Type: codeType, Doc: "the status"},
			Read: func(t *T, v yamlform.Value) { of(t).code = readCode(v) }},
		{Key: yamlform.Key{Name: "rule", Type: textType,
			Doc: "the path or `name` of the rule that decided, or the name of one of its `rate_limits`. `" + ofRequest +
				"`: the request's own limit. `" + noRule + "`: no rule applied"},
			Read: func(t *T, v yamlform.Value) {
				if name := readName(v, "`rule`"); name != "" {
					of(t).rule = &want[string]{name, v.Position()}
				}
			}},
		count("limit", "`requests_per_unit` or `max_in_flight` of the limit that decided",
			func(v *verdict, w *want[uint64]) { v.limit = w }),
		count("remaining", "the remaining hits, or 4294967295 if unlimited",
			func(v *verdict, w *want[uint64]) { v.remaining = w }),
		span("reset", "the time until the window ends, or until nothing is used any more, rounded up to seconds",
			func(v *verdict, w *want[time.Duration]) { v.reset = w }),
		{Key: yamlform.Key{Name: "wait", Type: spanOr(never, "`"+never+"`"),
			Doc: "the exact time until the same request would pass, 0s if it passed. `" + never +
				"`: it has more hits than the limit"},
			Read: func(t *T, v yamlform.Value) {
				if v.Written() == never {
					of(t).wait = &want[time.Duration]{backend.Never, v.Position()}
				} else if d, ok := readSpan(v, "wait"); ok {
					of(t).wait = &want[time.Duration]{d, v.Position()}
				}
			}},
		{Key: yamlform.Key{Name: "overridden", Type: flagType, Doc: "whether an override sets the numbers"},
			Read: func(t *T, v yamlform.Value) { of(t).overridden = &want[bool]{v.Flag(), v.Position()} }},
		{Key: yamlform.Key{Name: "would_deny", Type: yamlform.Type{Kind: yamlform.Texts},
			Doc: "limits that would have denied but are not enforced (`shadow`, `enforce_percent`, `soft`)"},
			Read: func(t *T, v yamlform.Value) { of(t).wouldDeny = readNames(v, "would_deny") }},
		span("delay", "how long a leaky bucket makes the client wait",
			func(v *verdict, w *want[time.Duration]) { v.delay = w }),
	}
}

// Words for values without a number or name.
const (
	never     = "never"         // the wait of a request that is heavier than its limit
	noRule    = "none"          // the rule of a descriptor that none applies to
	ofRequest = "request_limit" // the rule of a descriptor that carries a limit
)

var codeNames = []string{limiter.OK: limiter.OK.String(), limiter.OverLimit: limiter.OverLimit.String()}

// maxFileSize is how many bytes a test file may have.
const maxFileSize = 16 << 20

// parse reads a test file.
func parse(name string, data []byte) (*testFile, []*yamlform.Error) {
	if len(data) > maxFileSize {
		return nil, []*yamlform.Error{{File: name, Msg: fmt.Sprintf("larger than %d MiB: split it into several files",
			maxFileSize>>20)}}
	}
	r := yamlform.NewReader(name, yamlform.Options{Places: places, Hint: hint})
	doc,
		ok := r.ParseOne(data, "no tests in this file: write `cases:` and a list of cases, each with a `name` and `steps`",
		"a second YAML document: put all cases of a test file into one")
	if !ok {
		return nil, r.Errors()
	}
	f := fileReading{testFile: testFile{name: name, start: defaultStart, settings: new(limiter.Settings)}}
	read, _ := yamlform.Read(doc, fileForm, &f)
	if f.settingsAt.Given() {
		yamlform.Read(f.settingsAt, settingsForm, f.settings)
	}
	if f.casesAt.Given() {
		f.readCases()
	} else if read && r.Found() == 0 {
		doc.Errorf("no `cases`: write a list of cases, each with a `name` and `steps`")
	}
	return &f.testFile, r.Errors()
}

// hint explains a key that is really the end of a descriptor, cut off by a comma.
func hint(key string, v yamlform.Value) string {
	if !v.IsNull() || !strings.Contains(key, "=") {
		return ""
	}
	shown := yamlform.Clip(key)
	return fmt.Sprintf("unknown key `%s`: within { } put a descriptor with commas in quotes, \"key=value,%s\"", shown,
		shown)
}

func readRules(v yamlform.Value) []ruleRef {
	var refs []ruleRef
	for item := range v.Items() {
		if name := readName(item, "an entry of `rules`"); name != "" {
			refs = append(refs, ruleRef{name, item.Position()})
		}
	}
	return refs
}

// readNames reads a list of names, which may be empty.
func readNames(v yamlform.Value, key string) *want[[]string] {
	if !v.IsList() {
		v.Errorf("`%s` must be a list, not %s: write `[NAME]`, or `[]` for none", key, v.What())
		return nil
	}
	w := &want[[]string]{at: v.Position()}
	for item := range v.Items() {
		w.value = append(w.value, readName(item, "an entry of `"+key+"`"))
	}
	return w
}

// readName reads a text that may not be empty; it returns "" if it is.
func readName(v yamlform.Value, what string) string {
	text, ok := v.Text()
	if ok && text == "" {
		v.Errorf("%s is empty", what)
	}
	return text
}

func readCode(v yamlform.Value) *want[limiter.Code] {
	if i, ok := v.Choice(); ok {
		return &want[limiter.Code]{limiter.Code(i), v.Position()}
	}
	return nil
}

func (f *fileReading) readCases() {
	if !f.casesAt.IsList() {
		f.casesAt.Errorf("`cases` must be a list, not %s: start each case with `- name:`", f.casesAt.What())
		return
	}
	if f.casesAt.Len() == 0 {
		f.casesAt.Errorf("`cases` is empty: write at least one case, with a `name` and `steps`")
	}
	r := f.casesAt.Reader()
	named := make(map[string]yamlform.Position)
	for v := range f.casesAt.Items() {
		c := caseReading{testCase: testCase{at: v.Position(), start: f.start, settings: f.settings}}
		c.request.domain = f.domain
		before := r.Found()
		if read, _ := yamlform.Read(v, caseForm, &c); !read {
			continue
		}
		if first, twice := named[c.name]; twice && c.name != "" {
			v.Errorf("a case named %s twice: the first is %s", yamlform.Quote(c.name), first.Near())
		}
		named[c.name] = c.at
		if c.settingsAt.Given() {
			own := *f.settings
			yamlform.Read(c.settingsAt, settingsForm, &own)
			c.settings = &own
		}
		switch {
		case c.stepsAt.Given():
			c.readSteps()
		case r.Found() == before:
			v.Errorf("a case without `steps`")
		}
		if c.name == "" && r.Found() == before {
			v.Errorf("a case without a `name`: say in a few words what it shows")
		}
		f.cases = append(f.cases, &c.testCase)
	}
}

func (c *caseReading) readSteps() {
	if !c.stepsAt.IsList() {
		c.stepsAt.Errorf("`steps` must be a list, not %s", c.stepsAt.What())
		return
	}
	if c.stepsAt.Len() == 0 {
		c.stepsAt.Errorf("`steps` is empty: no request would be made")
	}
	r := c.stepsAt.Reader()
	last := time.Duration(0) // end of the previous step
	for v := range c.stepsAt.Items() {
		s := stepReading{step: step{at: v.Position(), repeat: 1}, request: c.request}
		before := r.Found()
		if read, _ := yamlform.Read(v, stepForm, &s); !read {
			continue
		}
		sound := r.Found() == before
		s.begin(c, last)
		last = s.offset
		switch more := time.Duration(s.repeat - 1); {
		case more == 0 && s.every > 0:
			v.Errorf("`every` without `repeat`: say how many requests there are")
		case more > 0 && s.every > longest/more:
			v.Errorf("the step takes more than 100 years")
		default:
			last += more * s.every
		}
		s.step.request = s.request.make(v, sound)
		if !s.expect && sound {
			v.Errorf("a step without `expect`: write `expect: OK`, or the answer that must come")
		}
		if p := s.want.passed; p != nil && p.value > s.repeat {
			r.ErrorAt(p.at, "`passed` is %d, and the step has %d requests", p.value, s.repeat)
		}
		if given, said := len(s.step.request.Descriptors), len(s.want.descriptors); said > 0 && given > 0 && given != said {
			r.ErrorAt(s.want.at,
				"`descriptors` in `expect` has %d entries, the request has %d descriptors: write one for each, `null` for one "+
					"that does not matter", said, given)
		}
		c.steps = append(c.steps, &s.step)
	}
}

// longest bounds how long a case may last.
const longest = 100 * 365 * day

// begin computes when a step starts; last is when the previous step ended.
func (s *stepReading) begin(c *caseReading, last time.Duration) {
	s.offset = last
	switch {
	case s.when.Given() && s.since.Given():
		s.since.Errorf("`after` and `at` in one step: `at` counts from the start, `after` from the step before")
	case s.since.Given():
		d, _ := readSpan(s.since, "after")
		s.offset += min(d, longest+1)
	case s.when.Given():
		if t, ok := parseInstant(s.when.Written()); ok {
			s.offset = t.Sub(c.start)
		} else if s.offset, ok = readSpan(s.when, "at"); !ok {
			s.offset = last
		}
		if s.offset < last {
			s.when.Errorf("`at` is %s after the start, and the step before ends %s after it: time cannot go back",
				formatSpan(s.offset), formatSpan(last))
			s.offset = last
		}
	}
	if s.offset > longest {
		c.stepsAt.Reader().ErrorAt(s.at, "the step starts more than 100 years after the start")
		s.offset = last
	}
}

// make returns the request of a step. at is the step; sound is set if no error in its keys is known.
func (q *requestReading) make(at yamlform.Value, sound bool) limiter.Request {
	if len(q.all.weights) > 1 {
		q.all.weights[1].Errorf("write only one of `hits`, `peek` and `refund`")
	}
	req := limiter.Request{Domain: q.domain, Hits: q.hits, Descriptors: slices.Clone(q.descriptors)}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if q.all.HasHits && !d.HasHits {
			d.Hits, d.HasHits, d.Refund = q.all.Hits, true, q.all.Refund
		}
		if q.all.HasLimit && !d.HasLimit {
			d.Limit, d.HasLimit = q.all.Limit, true
		}
	}
	if len(req.Descriptors) == 0 && !q.bad && sound {
		at.Errorf("a step without `descriptors`: write them here or for the whole case, like `key=value,key2=value2`")
	}
	return req
}

// readDescriptors reads one descriptor or a list of them.
func (q *requestReading) readDescriptors(v yamlform.Value) {
	q.descriptors, q.bad = nil, false
	for item := range v.Items() {
		d, ok := readDescriptor(item)
		if !ok {
			q.bad = true
			continue
		}
		q.descriptors = append(q.descriptors, d)
	}
}

func readDescriptor(v yamlform.Value) (limiter.Descriptor, bool) {
	if !v.IsMap() {
		all, ok := entries.Read(v)
		return limiter.Descriptor{Entries: all}, ok
	}
	if !v.Keys()["entries"].Given() {
		v.Errorf("a descriptor as a map needs `entries`; else write it as text, `key=value,key2=value2`, or as a list of " +
			"`key: value`")
		return limiter.Descriptor{}, false
	}
	var d descriptorReading
	before := v.Reader().Found()
	yamlform.Read(v, descriptorForm, &d)
	if len(d.weights) > 1 {
		d.weights[1].Errorf("write only one of `hits`, `peek` and `refund`")
	}
	return d.Descriptor, v.Reader().Found() == before
}

// readExpectation reads a code or a map.
func readExpectation(v yamlform.Value) expectation {
	e := expectation{at: v.Position()}
	if v.IsScalar() {
		e.code = readCode(v)
		return e
	}
	if read, _ := yamlform.Read(v, expectForm, &e); read && v.Len() == 0 {
		v.Errorf("`expect` is empty: write `expect: OK`, or the answer that must come")
	}
	return e
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func readHeaders(v yamlform.Value) []wantHeader {
	if !v.IsMap() {
		v.Errorf("`headers` must be a map of names and values, not %s", v.What())
		return nil
	}
	var headers []wantHeader
	for k, value := range v.Pairs() {
		if !headerName.MatchString(k.Written()) {
			k.Errorf("a header's name must be text, not %s", k.What())
			continue
		}
		h := wantHeader{name: k.Written(), at: value.Position()}
		if slices.ContainsFunc(headers, func(o wantHeader) bool { return strings.EqualFold(o.name, h.name) }) {
			k.Errorf("header %s twice", yamlform.Quote(h.name))
			continue
		}
		if value.IsNull() {
			h.at = k.Position()
		} else {
			text, ok := value.Text()
			if !ok {
				continue
			}
			h.value = &text
		}
		headers = append(headers, h)
	}
	return headers
}
