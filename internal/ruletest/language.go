package ruletest

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// defaultStart is when a case begins that does not say. At this instant a window of every unit begins on the clock: it
// lies 15,330 days after the epoch, the least multiple of weeks, of months of 30 days and of years of 365. So offsets
// within a test read as offsets within a window.
var defaultStart = time.Unix(15_330*24*60*60, 0).UTC()

const maxRepeat = 10_000_000

// testFile is one test file.
type testFile struct {
	name     string
	rules    []ruleRef // empty: the file of the same name without _test
	merge    bool
	domain   string
	start    time.Time
	settings *limiter.Settings
	cases    []*testCase
}

// ruleRef names a rule file that a test file is about.
type ruleRef struct {
	name string
	at   descriptor.Position
}

// testCase is a story: it begins with unused counters.
type testCase struct {
	name  string
	at    descriptor.Position
	start time.Time
	// settings are shared by the cases that say nothing of their own.
	settings *limiter.Settings
	steps    []*step
}

// step is a request, or the same one several times, and what must come.
type step struct {
	at      descriptor.Position
	offset  time.Duration // of the first request, from the case's start
	repeat  int
	every   time.Duration   // between two requests
	request limiter.Request // without a domain: of the only one there is
	want    expectation
}

// want is a value that must come, and where the file says so. A nil one is not looked at.
type want[T any] struct {
	value T
	at    descriptor.Position
}

// verdict is what may be said of a request, and of each of its descriptors.
type verdict struct {
	code      *want[limiter.Code]
	rule      *want[string]
	limit     *want[uint32]
	remaining *want[uint32]
	reset     *want[time.Duration]
	wait      *want[time.Duration]
	delay     *want[time.Duration]
}

// expectation is what must come of a step.
type expectation struct {
	verdict
	passed      *want[int] // how many of the repeated requests pass
	headers     []wantHeader
	descriptors []verdict // in the order of the request's; empty: nothing is said of them
	at          descriptor.Position
}

type wantHeader struct {
	name  string
	value *string // nil: the header must be absent
	at    descriptor.Position
}

// What a map has while it is read, before defaults from further out are known.
type (
	fileNode struct {
		testFile
		settingsAt, casesAt *yaml.Node
	}
	caseNode struct {
		testCase
		request             requestNode
		settingsAt, stepsAt *yaml.Node
	}
	stepNode struct {
		step
		when    *yaml.Node // of at
		since   *yaml.Node // of after
		request requestNode
		expect  bool
	}
	// requestNode is the request of a step. What it is about may be said for the whole case.
	requestNode struct {
		domain      string
		descriptors []limiter.Descriptor
		bad         bool // the descriptors were given and cannot be used
		hits        uint32
		all         descriptorNode // what holds for each descriptor that does not say so itself
	}
	descriptorNode struct {
		limiter.Descriptor
		said []*yaml.Node // hits, peek and refund: one alone
		unit bool         // the override has one
	}
)

// The language: which keys stand where, and what reads them.
var (
	fileShape       shape[fileNode]
	settingsShape   shape[limiter.Settings]
	caseShape       shape[caseNode]
	stepShape       shape[stepNode]
	descriptorShape shape[descriptorNode]
	overrideShape   shape[descriptorNode]
	expectShape     shape[expectation]
	verdictShape    shape[verdict]

	// places tells somebody who put a key into the wrong map where it belongs.
	places []config.Place
)

func init() {
	fileShape = shape[fileNode]{"the top of a test file", []key[fileNode]{
		{"rules", func(r *reader, f *fileNode, n *yaml.Node) { f.rules = r.rules(n) }},
		{"merge_domains", func(r *reader, f *fileNode, n *yaml.Node) { f.merge = r.flag("merge_domains", n) }},
		{"domain", func(r *reader, f *fileNode, n *yaml.Node) { f.domain = r.name("`domain`", n) }},
		{"start", func(r *reader, f *fileNode, n *yaml.Node) { f.start = r.instant("start", n) }},
		{"settings", func(_ *reader, f *fileNode, n *yaml.Node) { f.settingsAt = n }},
		{"cases", func(_ *reader, f *fileNode, n *yaml.Node) { f.casesAt = n }},
	}}

	settingsShape = shape[limiter.Settings]{"`settings`", []key[limiter.Settings]{
		{"shadow_mode", func(r *reader, s *limiter.Settings, n *yaml.Node) { s.Shadow = r.flag("shadow_mode", n) }},
		{"quota_mode", func(r *reader, s *limiter.Settings, n *yaml.Node) { s.Quota = r.flag("quota_mode", n) }},
		{"admission", func(r *reader, s *limiter.Settings, n *yaml.Node) {
			a, _ := r.choice("admission", n, descriptor.AdmissionNames)
			s.Admission = descriptor.Admission(a)
		}},
		{"stop_when_over", func(r *reader, s *limiter.Settings, n *yaml.Node) { s.StopWhenOver = r.flag("stop_when_over", n) }},
		{"calendar_months", func(r *reader, s *limiter.Settings, n *yaml.Node) { s.CalendarMonths = r.flag("calendar_months", n) }},
		{"headers", func(r *reader, s *limiter.Settings, n *yaml.Node) {
			s.Headers = 0
			for _, e := range items(n) {
				if i, ok := r.choice("headers", e, descriptor.HeaderFamilyNames); ok {
					s.Headers |= 1 << i
				}
			}
		}},
	}}

	caseShape = shape[caseNode]{"a case", append([]key[caseNode]{
		{"name", func(r *reader, c *caseNode, n *yaml.Node) { c.name = r.name("`name`", n) }},
		{"start", func(r *reader, c *caseNode, n *yaml.Node) { c.start = r.instant("start", n) }},
		{"settings", func(_ *reader, c *caseNode, n *yaml.Node) { c.settingsAt = n }},
		{"steps", func(_ *reader, c *caseNode, n *yaml.Node) { c.stepsAt = n }},
	}, subjectKeys(func(c *caseNode) *requestNode { return &c.request })...)}

	stepShape = shape[stepNode]{"a step", append([]key[stepNode]{
		{"at", func(_ *reader, s *stepNode, n *yaml.Node) { s.when = n }},
		{"after", func(_ *reader, s *stepNode, n *yaml.Node) { s.since = n }},
		{"repeat", func(r *reader, s *stepNode, n *yaml.Node) {
			if count, ok := r.number("repeat", n, 1, maxRepeat); ok {
				s.repeat = int(count)
			}
		}},
		{"every", func(r *reader, s *stepNode, n *yaml.Node) { s.every, _ = r.span("every", n) }},
		{"expect", func(r *reader, s *stepNode, n *yaml.Node) { s.expect, s.want = true, r.expectation(n) }},
		{"hits", func(r *reader, s *stepNode, n *yaml.Node) {
			if n.Value == "0" {
				r.Errorf(n, "`hits: 0` of a request means 1: write `peek: true` to look without counting")
				return
			}
			if hits, ok := r.number("hits", n, 1, math.MaxUint32); ok {
				s.request.hits = uint32(hits)
				s.request.all.said = append(s.request.all.said, n)
			}
		}},
	}, append(subjectKeys(func(s *stepNode) *requestNode { return &s.request }),
		weightKeys(func(s *stepNode) *descriptorNode { return &s.request.all })...)...)}

	descriptorShape = shape[descriptorNode]{"a descriptor", append([]key[descriptorNode]{
		{"entries", func(r *reader, d *descriptorNode, n *yaml.Node) { d.Entries, _ = r.entries(n) }},
		{"hits", func(r *reader, d *descriptorNode, n *yaml.Node) {
			if hits, ok := r.number("hits", n, 0, math.MaxUint64); ok {
				d.Hits, d.HasHits = hits, true
				d.said = append(d.said, n)
			}
		}},
	}, weightKeys(func(d *descriptorNode) *descriptorNode { return d })...)}

	overrideShape = shape[descriptorNode]{"`override`", []key[descriptorNode]{
		{"requests_per_unit", func(r *reader, d *descriptorNode, n *yaml.Node) {
			count, _ := r.number("requests_per_unit", n, 0, math.MaxUint32)
			d.Override.Requests = uint32(count)
		}},
		{"unit", func(r *reader, d *descriptorNode, n *yaml.Node) {
			d.unit = true
			if i, ok := r.choice("unit", n, descriptor.UnitNames); ok {
				d.Override.Unit = int32(descriptor.ParseUnit(descriptor.UnitNames[i]))
			}
		}},
	}}

	verdictShape = shape[verdict]{"what is expected of a descriptor", verdictKeys(func(v *verdict) *verdict { return v })}

	expectShape = shape[expectation]{"`expect`", append(verdictKeys(func(e *expectation) *verdict { return &e.verdict }),
		key[expectation]{"passed", func(r *reader, e *expectation, n *yaml.Node) {
			if count, ok := r.number("passed", n, 0, maxRepeat); ok {
				e.passed = &want[int]{int(count), r.Position(n)}
			}
		}},
		key[expectation]{"headers", func(r *reader, e *expectation, n *yaml.Node) { e.headers = r.headers(n) }},
		key[expectation]{"descriptors", func(r *reader, e *expectation, n *yaml.Node) {
			if n.Kind != yaml.SequenceNode {
				r.Errorf(n, "`descriptors` in `expect` must be a list, one entry for each descriptor of the request, this is %s", config.KindOf(n))
				return
			}
			for _, entry := range n.Content {
				var v verdict
				switch {
				case isNull(entry):
				case entry.Kind == yaml.ScalarNode:
					v.code = r.code(entry)
				default:
					readMap(r, &verdictShape, &v, entry)
				}
				e.descriptors = append(e.descriptors, v)
			}
		}},
	)}

	places = []config.Place{
		stepShape.place(),
		expectShape.place(),
		caseShape.place(),
		fileShape.place(),
		settingsShape.place(),
		descriptorShape.place(),
		overrideShape.place(),
	}
}

// subjectKeys are the keys of what a request is about.
func subjectKeys[T any](of func(*T) *requestNode) []key[T] {
	return []key[T]{
		{"domain", func(r *reader, t *T, n *yaml.Node) { of(t).domain = r.name("`domain`", n) }},
		{"descriptors", func(r *reader, t *T, n *yaml.Node) { r.descriptors(of(t), n) }},
	}
}

// weightKeys are the keys of what a descriptor adds, and under which limit.
func weightKeys[T any](of func(*T) *descriptorNode) []key[T] {
	return []key[T]{
		{"peek", func(r *reader, t *T, n *yaml.Node) {
			if d := of(t); r.flag("peek", n) {
				d.HasHits, d.Hits = true, 0
				d.said = append(d.said, n)
			}
		}},
		{"refund", func(r *reader, t *T, n *yaml.Node) {
			if hits, ok := r.number("refund", n, 1, backend.MaxHits); ok {
				d := of(t)
				d.HasHits, d.Hits, d.Refund = true, hits, true
				d.said = append(d.said, n)
			}
		}},
		{"override", func(r *reader, t *T, n *yaml.Node) {
			d := of(t)
			d.HasOverride = readMap(r, &overrideShape, d, n)
			if d.HasOverride && !d.unit {
				r.Errorf(n, "`override` without a `unit`: write %s", config.List(descriptor.UnitNames, "or"))
			}
		}},
	}
}

// verdictKeys are the keys of what must come of a request or of a descriptor.
func verdictKeys[T any](of func(*T) *verdict) []key[T] {
	span := func(name string, set func(*verdict, *want[time.Duration])) key[T] {
		return key[T]{name, func(r *reader, t *T, n *yaml.Node) {
			if d, ok := r.span(name, n); ok {
				set(of(t), &want[time.Duration]{d, r.Position(n)})
			}
		}}
	}
	count := func(name string, set func(*verdict, *want[uint32])) key[T] {
		return key[T]{name, func(r *reader, t *T, n *yaml.Node) {
			if c, ok := r.number(name, n, 0, math.MaxUint32); ok {
				set(of(t), &want[uint32]{uint32(c), r.Position(n)})
			}
		}}
	}
	return []key[T]{
		{"code", func(r *reader, t *T, n *yaml.Node) { of(t).code = r.code(n) }},
		{"rule", func(r *reader, t *T, n *yaml.Node) {
			if name := r.name("`rule`", n); name != "" {
				of(t).rule = &want[string]{name, r.Position(n)}
			}
		}},
		count("limit", func(v *verdict, w *want[uint32]) { v.limit = w }),
		count("remaining", func(v *verdict, w *want[uint32]) { v.remaining = w }),
		span("reset", func(v *verdict, w *want[time.Duration]) { v.reset = w }),
		{"wait", func(r *reader, t *T, n *yaml.Node) {
			if n.Kind == yaml.ScalarNode && n.Value == never {
				of(t).wait = &want[time.Duration]{backend.Never, r.Position(n)}
			} else if d, ok := r.span("wait", n); ok {
				of(t).wait = &want[time.Duration]{d, r.Position(n)}
			}
		}},
		span("delay", func(v *verdict, w *want[time.Duration]) { v.delay = w }),
	}
}

// What stands for something that has no number or name.
const (
	never      = "never"    // the wait of a request that is heavier than its limit
	noRule     = "none"     // the rule of a descriptor that none applies to
	overridden = "override" // the rule of a descriptor that brings its own limit
)

var codeNames = []string{limiter.OK: limiter.OK.String(), limiter.OverLimit: limiter.OverLimit.String()}

// parse reads a test file.
func parse(name string, data []byte) (*testFile, []*config.Error) {
	r := &reader{Complaints: config.Complaints{File: name}}
	if len(data) > maxFileSize {
		return nil, []*config.Error{{File: name, Msg: "larger than 16 MiB: split it into several files"}}
	}
	root := r.document(data)
	if root == nil {
		return nil, r.Sorted()
	}
	f := fileNode{testFile: testFile{name: name, start: defaultStart, settings: new(limiter.Settings)}}
	read := readMap(r, &fileShape, &f, root)
	if f.settingsAt != nil {
		readMap(r, &settingsShape, f.settings, f.settingsAt)
	}
	if f.casesAt != nil {
		r.cases(&f)
	} else if read && len(r.Errs) == 0 {
		r.Errorf(root, "no `cases`: write a list of cases, each with a `name` and `steps`")
	}
	return &f.testFile, r.Sorted()
}

func (r *reader) rules(n *yaml.Node) []ruleRef {
	var refs []ruleRef
	for _, e := range items(n) {
		if name := r.name("an entry of `rules`", e); name != "" {
			refs = append(refs, ruleRef{name, r.Position(e)})
		}
	}
	return refs
}

// items returns the entries of a list, or the one entry that stands in its place.
func items(n *yaml.Node) []*yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return []*yaml.Node{n}
}

// name reads a text that may not be empty; it returns "" if it is.
func (r *reader) name(what string, n *yaml.Node) string {
	text, ok := r.text(what, n)
	if ok && text == "" {
		r.Errorf(n, "%s is empty", what)
	}
	return text
}

func (r *reader) code(n *yaml.Node) *want[limiter.Code] {
	if c, ok := r.choice("code", n, codeNames); ok {
		return &want[limiter.Code]{limiter.Code(c), r.Position(n)}
	}
	return nil
}

func (r *reader) cases(f *fileNode) {
	if f.casesAt.Kind != yaml.SequenceNode {
		r.Errorf(f.casesAt, "`cases` must be a list, this is %s: begin each case with `- name:`", config.KindOf(f.casesAt))
		return
	}
	if len(f.casesAt.Content) == 0 {
		r.Errorf(f.casesAt, "`cases` is empty: write at least one case, with a `name` and `steps`")
	}
	named := make(map[string]int)
	for _, n := range f.casesAt.Content {
		c := caseNode{testCase: testCase{at: r.Position(n), start: f.start, settings: f.settings}}
		c.request.domain = f.domain
		before := len(r.Errs)
		if !readMap(r, &caseShape, &c, n) {
			continue
		}
		if first, twice := named[c.name]; twice && c.name != "" {
			r.Errorf(n, "a case named %s twice: the first is on line %d", config.Quote(c.name), first)
		}
		named[c.name] = n.Line
		if c.settingsAt != nil {
			own := *f.settings
			readMap(r, &settingsShape, &own, c.settingsAt)
			c.settings = &own
		}
		switch {
		case c.stepsAt != nil:
			r.steps(&c)
		case len(r.Errs) == before:
			r.Errorf(n, "a case without `steps`")
		}
		if c.name == "" && len(r.Errs) == before {
			r.Errorf(n, "a case without a `name`: say in a few words what it shows")
		}
		f.cases = append(f.cases, &c.testCase)
	}
}

func (r *reader) steps(c *caseNode) {
	if c.stepsAt.Kind != yaml.SequenceNode {
		r.Errorf(c.stepsAt, "`steps` must be a list, this is %s", config.KindOf(c.stepsAt))
		return
	}
	if len(c.stepsAt.Content) == 0 {
		r.Errorf(c.stepsAt, "`steps` is empty: nothing would be asked")
	}
	last := time.Duration(0) // of the step before
	for _, n := range c.stepsAt.Content {
		s := stepNode{step: step{at: r.Position(n), repeat: 1}, request: c.request}
		before := len(r.Errs)
		if !readMap(r, &stepShape, &s, n) {
			continue
		}
		sound := len(r.Errs) == before
		r.when(c, &s, last)
		last = s.offset
		switch more := time.Duration(s.repeat - 1); {
		case more == 0 && s.every > 0:
			r.Errorf(n, "`every` without `repeat`: say how many requests there are")
		case more > 0 && s.every > longest/more:
			r.Errorf(n, "the step takes more than 100 years")
		default:
			last += more * s.every
		}
		s.step.request = r.request(&s.request, n, sound)
		if !s.expect && sound {
			r.Errorf(n, "a step without `expect`: write `expect: OK`, or whatever must come")
		}
		if p := s.want.passed; p != nil && p.value > s.repeat {
			r.ErrorAt(p.at, "`passed` is %d, and the step has %d requests", p.value, s.repeat)
		}
		if given, said := len(s.step.request.Descriptors), len(s.want.descriptors); said > 0 && given > 0 && given != said {
			r.ErrorAt(s.want.at, "`descriptors` in `expect` has %d entries, the request has %d descriptors: write one for each, `null` for one that does not matter", said, given)
		}
		c.steps = append(c.steps, &s.step)
	}
}

// longest bounds how long a case may last.
const longest = 100 * 365 * day

// when finds out when a step begins.
func (r *reader) when(c *caseNode, s *stepNode, last time.Duration) {
	s.offset = last
	switch {
	case s.when != nil && s.since != nil:
		r.Errorf(s.since, "`after` and `at` in one step: `at` counts from the start, `after` from the step before")
	case s.since != nil:
		d, _ := r.span("after", s.since)
		s.offset += min(d, longest+1)
	case s.when != nil:
		if t, ok := parseInstant(s.when); ok {
			s.offset = t.Sub(c.start)
		} else if s.offset, ok = r.span("at", s.when); !ok {
			s.offset = last
		}
		if s.offset < last {
			r.Errorf(s.when, "`at` is %s after the start, and the step before ends %s after it: time goes on only", FormatSpan(s.offset), FormatSpan(last))
			s.offset = last
		}
	}
	if s.offset > longest {
		r.ErrorAt(s.at, "the step begins more than 100 years after the start")
		s.offset = last
	}
}

// request makes the request of a step. sound says that nothing is known to be wrong with the step's keys.
func (r *reader) request(q *requestNode, n *yaml.Node, sound bool) limiter.Request {
	if len(q.all.said) > 1 {
		r.Errorf(q.all.said[1], "one of `hits`, `peek` and `refund` alone")
	}
	req := limiter.Request{Domain: q.domain, Hits: q.hits, Descriptors: slices.Clone(q.descriptors)}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if q.all.HasHits && !d.HasHits {
			d.Hits, d.HasHits, d.Refund = q.all.Hits, true, q.all.Refund
		}
		if q.all.HasOverride && !d.HasOverride {
			d.Override, d.HasOverride = q.all.Override, true
		}
	}
	if len(req.Descriptors) == 0 && !q.bad && sound {
		r.Errorf(n, "a step without `descriptors`: write them here or for the whole case, like `key=value,key2=value2`")
	}
	return req
}

// descriptors reads one descriptor or a list of them.
func (r *reader) descriptors(q *requestNode, n *yaml.Node) {
	q.descriptors, q.bad = nil, false
	for _, e := range items(n) {
		d, ok := r.descriptor(e)
		if !ok {
			q.bad = true
			continue
		}
		q.descriptors = append(q.descriptors, d)
	}
}

func (r *reader) descriptor(n *yaml.Node) (limiter.Descriptor, bool) {
	if n.Kind != yaml.MappingNode {
		entries, ok := r.entries(n)
		return limiter.Descriptor{Entries: entries}, ok
	}
	if keyOf(n, "entries") == nil {
		r.Errorf(n, "a descriptor as a map needs `entries`; else write it as text, `key=value,key2=value2`, or as a list of `key: value`")
		return limiter.Descriptor{}, false
	}
	var d descriptorNode
	before := len(r.Errs)
	readMap(r, &descriptorShape, &d, n)
	if len(d.said) > 1 {
		r.Errorf(d.said[1], "one of `hits`, `peek` and `refund` alone")
	}
	return d.Descriptor, len(r.Errs) == before
}

// entries reads the entries of a descriptor: a text or a list of maps.
func (r *reader) entries(n *yaml.Node) ([]descriptor.Entry, bool) {
	if n.Kind != yaml.SequenceNode {
		text, ok := r.text("a descriptor", n)
		if !ok {
			return nil, false
		}
		entries, err := ParseEntries(text)
		if err != nil {
			r.Errorf(n, "%v", err)
		}
		return entries, err == nil
	}
	var entries []descriptor.Entry
	for _, e := range n.Content {
		if e.Kind != yaml.MappingNode {
			r.Errorf(e, "an entry of a descriptor must be a map like `key: value`, this is %s", config.KindOf(e))
			return nil, false
		}
		for i := 0; i+1 < len(e.Content); i += 2 {
			k, v := e.Content[i], e.Content[i+1]
			name, ok := r.text("the key of an entry", k)
			if !ok {
				return nil, false
			}
			value := ""
			if !isNull(v) {
				if value, ok = r.text("the value of an entry", v); !ok {
					return nil, false
				}
			}
			entries = append(entries, descriptor.Entry{Key: name, Value: value})
		}
	}
	if len(entries) == 0 {
		r.Errorf(n, "a descriptor without entries: write `key=value`")
	}
	return entries, len(entries) > 0
}

// expectation reads a code alone or a map.
func (r *reader) expectation(n *yaml.Node) expectation {
	e := expectation{at: r.Position(n)}
	if n.Kind == yaml.ScalarNode {
		e.code = r.code(n)
		return e
	}
	if readMap(r, &expectShape, &e, n) && len(n.Content) == 0 {
		r.Errorf(n, "`expect` is empty: write `expect: OK`, or whatever must come")
	}
	return e
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (r *reader) headers(m *yaml.Node) []wantHeader {
	if m.Kind != yaml.MappingNode {
		r.Errorf(m, "`headers` must be a map of names and values, this is %s", config.KindOf(m))
		return nil
	}
	var headers []wantHeader
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		if k.Kind != yaml.ScalarNode || !headerName.MatchString(k.Value) {
			r.Errorf(k, "a header's name must be text, this is %s", config.KindOf(k))
			continue
		}
		h := wantHeader{name: k.Value, at: r.Position(v)}
		if slices.ContainsFunc(headers, func(o wantHeader) bool { return strings.EqualFold(o.name, h.name) }) {
			r.Errorf(k, "header %s twice", config.Quote(k.Value))
			continue
		}
		if isNull(v) {
			h.at = r.Position(k)
		} else {
			text, ok := r.text("the value of a header", v)
			if !ok {
				continue
			}
			h.value = &text
		}
		headers = append(headers, h)
	}
	return headers
}
