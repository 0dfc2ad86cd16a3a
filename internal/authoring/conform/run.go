package conform

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Ask sends one request to the service.
type Ask func(context.Context, *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error)

// Options select the cases, and describe how the service gets their rules. Ask, Reserve and Rules are required.
type Options struct {
	Ask     Ask
	Reserve Ask    // calls Reserve of kuadrant.service.ratelimit.v1.RateLimitService; if nil, reservations are not tried
	Rules   string // the directory from which the service reads rule files

	Form  Form           // form of the rule files; default Envoy
	Setup string         // setup whose cases run; default Plain
	Match *regexp.Regexp // runs only the cases whose "LEVEL/NAME" matches; nil runs all

	// Shell commands. Without Load, the service must notice new rules on its own. Cases that need another missing command
	// are skipped.
	Load, Restart, StopStore, StartStore string

	Wait time.Duration // how long the service may take to have the rules; default 30 s
}

// Report is the result of the cases.
type Report struct {
	Setup   string   `json:"setup"`
	Results []Result `json:"results"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Seconds float64  `json:"seconds"`
}

// Result is the result of one case.
type Result struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Why     string `json:"why,omitempty"`
	Report  string `json:"report,omitempty"`  // where users of some service met it
	Skipped string `json:"skipped,omitempty"` // why it was not run
	Failure string `json:"failure,omitempty"` // difference in the first step that differs
	Step    int    `json:"step,omitempty"`    // number of that step, from 1
	Request string `json:"request,omitempty"` // request of that step, as JSON
	Rules   string `json:"rules,omitempty"`   // rules of a failed case
}

// suite is one run.
type suite struct {
	Options
	run   string            // part of each domain
	files map[string]string // rules by name
}

// Run writes the rule files of the cases into the directory, waits until the service has them, and asks it. Domains are
// new in each run, so that counters of earlier runs do not matter. The files of earlier runs are removed.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Setup == "" {
		o.Setup = Plain
	}
	if o.Wait <= 0 {
		o.Wait = 30 * time.Second
	}
	setup, err := setupNamed(o.Setup)
	if err != nil {
		return nil, err
	}
	s := &suite{Options: o, run: rand.Text()[:8], files: map[string]string{}}
	var cases []Case
	if o.Form != Limitador { // these are rules in the form of envoyproxy/ratelimit
		cases = s.selected(setup.Cases)
	}
	var counted []counted
	if o.Setup == Plain { // other settings may let requests pass
		counted = s.selectedCounted()
	}
	if len(cases)+len(counted) == 0 {
		return nil,
			fmt.Errorf("no case matches the regular expression %s: names are LEVEL/NAME, and setup %s has none like it", o.Match,
				o.Setup)
	}
	if err := s.removeFiles(); err != nil {
		return nil, err
	}
	names := append(slices.Sorted(maps.Keys(s.files)), "probe")
	s.files["probe"] = s.Form.rules(s.domain("probe"), nil)
	if err := s.load(ctx, s.domain("probe"), names...); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(cases, func(c Case) bool { return c.Level == Recorded }) { // the others have longer windows
		if err := awaitMinute(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	r := &Report{Setup: o.Setup}
	for i := range cases {
		r.add(&cases[i], cases[i].Replay(ctx, o.Ask, time.Now))
	}
	for i := range counted {
		r.add(&counted[i].Case, s.count(ctx, &counted[i]))
	}
	r.Seconds = time.Since(began).Seconds()
	return r, ctx.Err()
}

func setupNamed(name string) (*Setup, error) {
	all, err := Setups()
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("there is no setup %s: use one of %s", name, strings.Join(names, ", "))
}

func (s *suite) matches(c *Case) bool {
	return s.Match == nil || s.Match.MatchString(string(c.Level)+"/"+c.Name)
}

func (s *suite) selected(cases []Case) (chosen []Case) {
	for i := range cases {
		if s.matches(&cases[i]) {
			c := cases[i].fresh(s.run)
			s.files[c.Name] = c.Rules
			chosen = append(chosen, c)
		}
	}
	return chosen
}

const filePrefix = "conform-" // prefix of the rule files in the directory

func (s *suite) domain(name string) string { return "conform-" + name + "-" + s.run }

func (s *suite) removeFiles() error {
	old, err := filepath.Glob(filepath.Join(s.Rules, filePrefix+"*.yaml"))
	if err != nil {
		return fmt.Errorf("find the rule files of earlier runs: %w", err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("remove the rule file of an earlier run: %w", err)
		}
	}
	return nil
}

// load writes rule files, and waits until the service has loaded the domain of the last one.
func (s *suite) load(ctx context.Context, domain string, names ...string) error {
	if s.Form == Limitador {
		names = names[len(names)-1:] // all are in one file
	}
	for _, name := range names {
		if err := s.Form.write(s.Rules, name, s.files); err != nil {
			return fmt.Errorf("write the rules: %w", err)
		}
	}
	if err := shell(ctx, s.Load); err != nil {
		return fmt.Errorf("load the rules: %w", err)
	}
	return s.await(ctx, domain)
}

// await asks for the limit of a probe until the service has loaded it.
func (s *suite) await(ctx context.Context, domain string) error {
	until := time.Now().Add(s.Wait)
	request := request(domain, 1, "probe=probe")
	for {
		answer, err := s.Ask(ctx, request)
		known := answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT // its limit is 0
		switch {
		case err == nil && (known || len(answer.GetStatuses()) == 1 && answer.GetStatuses()[0].GetCurrentLimit() != nil):
			// in shadow mode it passes
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(until) && err != nil:
			return fmt.Errorf("ask the service: %w", err)
		case time.Now().After(until):
			return fmt.Errorf("after %s the service does not have the rules in %s: does it read that directory, or does it "+
				"need a command to load them?", s.Wait, s.Rules)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitMinute waits for the next minute if less than half of this one is left, so that no window ends between two
// requests.
func awaitMinute(ctx context.Context) error {
	now := time.Now()
	if next := now.Truncate(time.Minute).Add(time.Minute); next.Sub(now) < 30*time.Second {
		return pause(ctx, next.Sub(now))
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func shell(ctx context.Context, command string) error {
	if command == "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

func (r *Report) add(c *Case, one Result) {
	one.Name, one.Level, one.Why, one.Report = c.Name, c.Level, c.Why, c.Report
	switch {
	case one.Skipped != "":
		r.Skipped++
	case one.Failure != "":
		r.Failed++
		one.Rules = c.Rules
	default:
		r.Passed++
	}
	r.Results = append(r.Results, one)
}
