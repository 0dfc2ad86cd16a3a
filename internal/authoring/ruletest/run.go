package ruletest

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Options control a Run. The zero value runs every case of all files.
type Options struct {
	Match    *regexp.Regexp // runs the cases whose "FILE: NAME" matches; nil runs all
	Parallel int            // number of files in parallel; 0 means as many as Go uses processors
	Rules    []string       // rule files that count in Report.Coverage in addition to the files that the tests name

	firstOnly bool // stop a file at its first failure
}

// Run runs test files. Their errors are in the report; the returned error is the error of ctx.
func Run(ctx context.Context, files []string, o Options) (*Report, error) {
	if o.Parallel <= 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	began := time.Now()
	report := &Report{Files: make([]FileResult, len(files))}
	reached := make([]*reach, len(files))
	var g errgroup.Group
	g.SetLimit(o.Parallel)
	for i, name := range files {
		g.Go(func() error {
			s, errs := load(name)
			if len(errs) > 0 {
				report.Files[i] = badFile(name, errs)
				return nil
			}
			report.Files[i], reached[i] = s.run(ctx, o)
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	report.Elapsed = time.Since(began)
	report.sum()
	report.Coverage = cover(reached, o.Rules)
	return report, nil
}

func badFile(name string, errs []*yamlform.Error) FileResult {
	f := FileResult{Name: name}
	for _, e := range errs {
		f.Errors = append(f.Errors, FileError{e.File, e.Line, e.Col, e.Msg})
	}
	return f
}

// suiteRun is the state that the cases of a file share. They run one after the other.
type suiteRun struct {
	*suite
	options  Options
	tree     *descriptor.Tree
	monthly  *descriptor.Tree // the tree for cases with calendar months; nil until one of them runs
	domain   string           // domain of requests that do not name one
	store    caseStore
	limiters map[limiterFor]*limiter.Limiter
	reached  *reach
}

// limiterFor is the key of a limiter. Only requests of several descriptors need the explanation that shows which one
// decided.
type limiterFor struct {
	settings  *limiter.Settings
	overrides *testCase // nil for only the overrides of the file
	explain   bool
}

// caseStore is the store of the running case. Limiters are shared by cases.
type caseStore struct{ *memory.Store }

func (s *suite) run(ctx context.Context, o Options) (FileResult, *reach) {
	began := time.Now()
	tree, domain, errs := s.compile()
	if len(errs) > 0 {
		return badFile(s.name, errs), nil
	}
	sr := &suiteRun{suite: s, options: o, tree: tree, domain: domain, limiters: make(map[limiterFor]*limiter.Limiter),
		reached: newReach(tree)}
	result := FileResult{Name: s.name}
	for _, f := range s.rules {
		result.Rules = append(result.Rules, f.Name)
	}
	for _, c := range s.cases {
		if o.Match != nil && !o.Match.MatchString(s.name+": "+c.name) {
			continue
		}
		cr := sr.runCase(ctx, c)
		result.Cases = append(result.Cases, cr)
		if ctx.Err() != nil || o.firstOnly && len(cr.Failures) > 0 {
			break
		}
	}
	result.Elapsed = time.Since(began)
	return result, sr.reached
}

func (s *suiteRun) limiterOf(c *testCase, explain bool) *limiter.Limiter {
	of := limiterFor{settings: c.settings, explain: explain}
	if len(c.overrides) > 0 {
		of.overrides = c
	}
	l := s.limiters[of]
	if l == nil {
		settings := *c.settings
		settings.Explain = explain
		l = limiter.New(limiter.Options{Store: &s.store})
		l.Swap(s.treeFor(c), settings)
		// the case's overrides come last: of two for one limit, the last one counts
		if all := slices.Concat(s.overrides, c.overrides); len(all) > 0 {
			l.SetOverrides(override.SetOf(all))
		}
		s.limiters[of] = l
	}
	return l
}

// treeFor returns the tree for a case. Cases with calendar months have a separate tree; a rule has the same index in
// both trees.
func (s *suiteRun) treeFor(c *testCase) *descriptor.Tree {
	if !c.settings.CalendarMonths {
		return s.tree
	}
	if s.monthly == nil {
		s.monthly, _ = s.compileFor(descriptor.Options{CalendarMonths: true}) // without errors, as the other tree
	}
	return s.monthly
}

const maxFailures = 20 // reported for one case

func (s *suiteRun) runCase(ctx context.Context, c *testCase) CaseResult {
	began := time.Now()
	s.store.Store = memory.New(memory.Options{})
	result := CaseResult{Name: c.name, Line: c.at.Line, Col: c.at.Col, Steps: len(c.steps)}
	for i, st := range c.steps {
		o := observed{testCase: c, step: st, number: i + 1, steps: len(c.steps)}
		result.Requests += s.runStep(ctx, &o)
		result.Failures = append(result.Failures, o.failures...)
		if ctx.Err() != nil || len(result.Failures) >= maxFailures || s.options.firstOnly && len(result.Failures) > 0 {
			break
		}
	}
	result.Elapsed = time.Since(began)
	return result
}

// runStep makes the requests of a step and returns their number.
//
// Code, rule and limit must be as expected for every request. The other values are checked after the last request: 5
// requests are 5 times OK, and then 0 remain.
func (s *suiteRun) runStep(ctx context.Context, o *observed) int {
	req := o.step.request
	req.Domain = cmp.Or(req.Domain, s.domain)
	l := s.limiterOf(o.testCase, len(req.Descriptors) > 1)
	o.match(s.treeFor(o.testCase).Domain(req.Domain), &req)
	for o.nth = 1; o.nth <= o.step.repeat; o.nth++ {
		if o.nth%1024 == 0 && ctx.Err() != nil {
			return o.nth
		}
		o.offset = o.step.offset + time.Duration(o.nth-1)*o.step.every
		if err := l.Decide(ctx, o.testCase.start.Add(o.offset), &req, &o.decision); err != nil {
			o.fail(nil, fmt.Sprintf("the engine answers with an error: %v", err))
			return o.nth
		}
		o.sawRules(s.reached)
		o.check()
	}
	return o.step.repeat
}
