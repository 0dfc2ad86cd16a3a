package ruletest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Mutant is a rule file with one change that could be a mistake.
type Mutant struct {
	File string // the rule file
	Line int    // where it was changed
	Col  int
	What string // "requests_per_unit: 5 -> 6"
	Data []byte // the whole file
}

func (m *Mutant) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Col, m.What)
}

// Mutants returns the mutants of a rule file: numbers plus and minus one, neighbouring units, other keys and values,
// other algorithms, inverted flags. The rule language may reject some of them. Rarely, a mutant means the same as the
// original.
func Mutants(name string, data []byte) ([]Mutant, error) {
	r := yamlform.NewReader(name, yamlform.Options{})
	m := mutator{file: name, text: string(data), seen: make(map[yamlform.Position]bool)}
	for _, doc := range r.Parse(data) {
		m.walk("", doc)
	}
	for _, bad := range r.Errors() {
		return nil, fmt.Errorf("mutate: %w", bad)
	}
	return m.made, m.err
}

// mutator walks a rule file and changes its text.
type mutator struct {
	file string
	text string
	seen map[yamlform.Position]bool // scalars, which aliases and merged maps lead to again
	made []Mutant
	err  error
}

// walk visits a value, and the values in it. key is the key of the value, or of the list that contains it.
func (m *mutator) walk(key string, v yamlform.Value) {
	if m.written(v) == "*" || v.IsScalar() && m.seen[v.Position()] {
		return
	}
	if v.IsScalar() {
		m.seen[v.Position()] = true
	}
	if !m.visit(key, v) {
		return
	}
	if v.IsList() {
		for item := range v.Items() {
			m.walk(key, item)
		}
	}
	for k, value := range v.Pairs() {
		m.walk(k.Written(), value)
	}
}

// offset returns the offset at which a value starts in the text.
func (m *mutator) offset(v yamlform.Value) int {
	p, at := v.Position(), 0
	for range p.Line - 1 {
		at += strings.IndexByte(m.text[at:], '\n') + 1
	}
	for range p.Col - 1 {
		_, size := utf8.DecodeRuneInString(m.text[at:])
		at += size
	}
	return at
}

// written returns the mark that a value starts with: a quote, the star of an alias, the bracket of a map in flow style;
// or "".
func (m *mutator) written(v yamlform.Value) string {
	if at := m.offset(v); strings.ContainsRune("*'\"{", rune(m.text[at])) {
		return m.text[at : at+1]
	}
	return ""
}

// with returns the file with a scalar replaced by another text. A scalar in quotes stays in quotes, so that it is still
// a text.
func (m *mutator) with(v yamlform.Value, text string) ([]byte, error) {
	at := m.offset(v)
	end := at + len(v.Written())
	if quote := m.written(v); quote != "" {
		end = at + 1
		for end < len(m.text) && m.text[end] != quote[0] {
			if quote == `"` && m.text[end] == '\\' {
				end++
			}
			end++
		}
		end++
		text = "'" + strings.ReplaceAll(text, "'", "''") + "'"
	} else if end > len(m.text) || m.text[at:end] != v.Written() {
		return nil, fmt.Errorf("%s is not written on one line, without quotes or in single ones", v.Written())
	}
	return []byte(m.text[:at] + text + m.text[end:]), nil
}

// and returns the file with one more key in a map.
func (m *mutator) and(v yamlform.Value, key, text string) []byte {
	at := m.offset(v)
	if m.written(v) == "{" {
		return []byte(m.text[:at+1] + key + ": " + text + ", " + m.text[at+1:])
	}
	return []byte(m.text[:at] + key + ": " + text + "\n" + strings.Repeat(" ", v.Position().Col-1) + m.text[at:])
}

// visit makes the mutants of one value. It returns whether the values in it are visited too.
func (m *mutator) visit(key string, v yamlform.Value) bool {
	if key == "metadata" {
		return false // free-form, without an effect on decisions
	}
	if key == "cost" {
		m.costs(key, v)
		return false
	}
	if v.IsMap() {
		if keys := v.Keys(); keys["requests_per_unit"].Given() && !keys["algorithm"].Given() {
			m.algorithms(v)
		}
		return true
	}
	if !v.IsScalar() || v.IsNull() {
		return true
	}
	k, known := ruleKeys()[key]
	switch {
	case !known || slices.Contains(unseen, key):
	case key == "unit":
		m.unit(v)
	case key == "ttl":
		m.others(key, v, []string{"1s"})
	case key == "penalty":
		m.others(key, v, []string{"1s", "720h"})
	case key == "enforce_percent": // few customers are at the edge of a share
		m.others(key, v, []string{"1", "100"})
	case key == "value_regex":
		m.set(key, v, "x"+v.Written())
	case key == "value_cidr":
		m.network(v)
	case key == "calendar":
		m.others(key, v, []string{"UTC", "Pacific/Kiritimati"})
	case k.Type.Kind == yamlform.Number:
		m.number(key, v, k.Type)
	case k.Type.Kind == yamlform.Flag:
		m.others(key, v, []string{"true", "false"})
	case k.Type.Kind == yamlform.Choice:
		m.others(key, v, k.Type.Names)
	case k.Type.Kind == yamlform.Text, k.Type.Kind == yamlform.TextList:
		m.set(key, v, v.Written()+"x")
	}
	return true
}

// unseen are keys whose change no test can notice: the behaviour when a store fails, how counters are shared with
// Redis, the names of metrics, and quota buckets. A changed domain name gives another domain.
var unseen = []string{"domain", "on_error", "lease", "detailed_metric", "value_to_metric", "order", "default"}

// ruleKeys returns the keys of the rule language by name.
var ruleKeys = sync.OnceValue(func() map[string]yamlform.Key {
	keys := make(map[string]yamlform.Key)
	for _, m := range config.Rules().Maps {
		for _, k := range m.Keys {
			keys[k.Name] = k
		}
	}
	return keys
})

// number makes the mutants of a number plus and minus one.
func (m *mutator) number(key string, v yamlform.Value, t yamlform.Type) {
	n, err := strconv.ParseUint(v.Written(), 0, 64)
	switch {
	case err != nil && v.Written() == t.Word:
		m.set(key, v, strconv.FormatUint(t.Least, 10))
	case err != nil:
	default:
		if n < t.Most {
			m.set(key, v, strconv.FormatUint(n+1, 10))
		}
		if n > t.Least {
			m.set(key, v, strconv.FormatUint(n-1, 10))
		}
	}
}

// costs makes the mutants of a cost, and of the costs in a map, whose keys do not belong to the rule language.
func (m *mutator) costs(key string, v yamlform.Value) {
	if !v.IsMap() {
		m.number(key, v, yamlform.Between(1, descriptor.MaxHitCost))
		return
	}
	for k, cost := range v.Pairs() {
		m.costs(k.Written(), cost)
	}
}

func (m *mutator) network(v yamlform.Value) {
	p, err := netip.ParsePrefix(v.Written())
	if err != nil {
		return
	}
	for _, bits := range []int{p.Bits() - 1, p.Bits() + 1} {
		if other, err := p.Addr().Prefix(bits); err == nil {
			m.set("value_cidr", v, other.String())
		}
	}
}

func (m *mutator) unit(v yamlform.Value) {
	i := slices.Index(descriptor.UnitNames, strings.ToLower(v.Written()))
	if i > 0 {
		m.set("unit", v, descriptor.UnitNames[i-1])
	}
	if i >= 0 && i+1 < len(descriptor.UnitNames) {
		m.set("unit", v, descriptor.UnitNames[i+1])
	}
}

func (m *mutator) others(key string, v yamlform.Value, names []string) {
	for _, n := range names {
		if n != "" && !strings.EqualFold(n, v.Written()) {
			m.set(key, v, n)
		}
	}
}

// set makes a mutant in which a scalar has another value.
func (m *mutator) set(key string, v yamlform.Value, text string) {
	what := fmt.Sprintf("%s: %s -> %s", key, v.Written(), text)
	data, err := m.with(v, text)
	m.add(v, what, data, err)
}

// algorithms makes the mutants in which a limit that does not name its algorithm has another one.
func (m *mutator) algorithms(limit yamlform.Value) {
	for _, name := range descriptor.AlgorithmNames[1:] {
		m.add(limit, fmt.Sprintf("algorithm: %s -> %s", descriptor.FixedWindow, name), m.and(limit, "algorithm", name), nil)
	}
}

func (m *mutator) add(at yamlform.Value, what string, data []byte, err error) {
	if err != nil {
		m.err = fmt.Errorf("mutate %s: %w", m.file, err)
		return
	}
	p := at.Position()
	m.made = append(m.made, Mutant{File: m.file, Line: p.Line, Col: p.Col, What: what, Data: data})
}

// MutationReport counts the mutants that the tests noticed.
type MutationReport struct {
	Killed   int      // a case failed, or the tests no longer fit these rules
	Survived []Mutant // all cases passed; by file and line
	Rejected int      // number rejected by the rule language; they do not count
}

// Share returns the share of mutants that were noticed, from 0 to 1; 1 if there were none.
func (r *MutationReport) Share() float64 {
	all := r.Killed + len(r.Survived)
	if all == 0 {
		return 1
	}
	return float64(r.Killed) / float64(all)
}

// Mutate runs the tests of each file against every mutant of its rule files. If several test files test one rule file,
// a mutant is noticed if any of them fails. Mutate returns an error if a file cannot be run, or if its tests fail
// without a change.
func Mutate(ctx context.Context, files []string) (*MutationReport, error) {
	suites := make([]*suite, len(files))
	byRules := make(map[string][]*suite)
	for i, name := range files {
		s, errs := load(name)
		if len(errs) > 0 {
			return nil, fmt.Errorf("mutate: %w", errs[0])
		}
		suites[i] = s
		if failed := s.fails(ctx, nil); failed != "" {
			return nil, fmt.Errorf("mutate: the tests do not pass before anything is changed: %s", failed)
		}
		for _, f := range s.rules {
			byRules[absolute(f.Name)] = append(byRules[absolute(f.Name)], s)
		}
	}
	var mutants []Mutant
	for _, s := range suites {
		for _, f := range s.rules {
			if byRules[absolute(f.Name)][0] != s {
				continue // made for the first test file
			}
			made, err := Mutants(f.Name, f.Data)
			if err != nil {
				return nil, err
			}
			mutants = append(mutants, made...)
		}
	}
	return judge(ctx, mutants, byRules)
}

func judge(ctx context.Context, mutants []Mutant, byRules map[string][]*suite) (*MutationReport, error) {
	const rejected, killed, survived = 0, 1, 2
	fates := make([]int, len(mutants))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range mutants {
		g.Go(func() error {
			m := &mutants[i]
			if _, errs := config.Compile([]config.File{{Name: m.File, Data: m.Data}}, config.CompileOptions{}); len(errs) > 0 {
				return nil
			}
			fates[i] = survived
			for _, s := range byRules[absolute(m.File)] {
				if s.fails(ctx, m) != "" {
					fates[i] = killed
					break
				}
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r := &MutationReport{}
	for i := range mutants {
		switch fates[i] {
		case rejected:
			r.Rejected++
		case killed:
			r.Killed++
		default:
			r.Survived = append(r.Survived, mutants[i])
		}
	}
	slices.SortStableFunc(r.Survived, func(a, b Mutant) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return r, nil
}

// fails runs the suite with its rules replaced by a mutant, or unchanged if m is nil. It returns the first failure, or
// "".
func (s *suite) fails(ctx context.Context, m *Mutant) string {
	with := &suite{testFile: s.testFile, rules: slices.Clone(s.rules)}
	for i := range with.rules {
		if m != nil && absolute(with.rules[i].Name) == absolute(m.File) {
			with.rules[i].Data = m.Data
		}
	}
	result, _ := with.run(ctx, Options{firstOnly: true})
	for i := range result.Errors {
		return result.Errors[i].String()
	}
	for i := range result.Cases {
		if c := &result.Cases[i]; len(c.Failures) > 0 {
			return fmt.Sprintf("%s:%d:%d: %s", result.Name, c.Failures[0].Line, c.Failures[0].Col, c.Name)
		}
	}
	return ""
}
