package conform

import (
	"context"
	"crypto/rand"
	"fmt"
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

// Options say which cases run, and how the service gets their rules. Ask and Rules are required.
type Options struct {
	Ask   Ask
	Rules string // the directory from which the service reads rule files

	Setup string         // whose cases run; default Plain
	Match *regexp.Regexp // only the cases whose "LEVEL/NAME" matches; nil: all

	Load    string        // a shell command that makes the service read its rules; empty: it notices on its own
	Restart string        // a shell command that restarts the service; empty: restarts are not tried
	Wait    time.Duration // how long the service may take to have the rules; default 30 s
}

// Report is what became of the cases.
type Report struct {
	Setup   string   `json:"setup"`
	Results []Result `json:"results"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Seconds float64  `json:"seconds"`
}

// Result is what became of one case.
type Result struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Why     string `json:"why,omitempty"`
	Skipped string `json:"skipped,omitempty"` // why it was not run
	Failure string `json:"failure,omitempty"` // of the first step that differs
	Step    int    `json:"step,omitempty"`    // that step, from 1
	Request string `json:"request,omitempty"` // of that step, as JSON
	Rules   string `json:"rules,omitempty"`   // of a failed case
}

// Run writes the rule files of the cases into the directory, waits until the service has them, and asks it. Domains are new in each run,
// so that counters of earlier runs do not matter. The files of earlier runs are removed.
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
	run := rand.Text()[:8]
	cases := o.selected(setup.Cases, run)
	var exact []Case
	if o.Setup == Plain { // other settings may let requests pass
		exact = o.selected(exactCases, run)
	}
	if len(cases)+len(exact) == 0 {
		return nil, fmt.Errorf("no case matches the regular expression %s: names are LEVEL/NAME, and setup %s has none like it", o.Match, o.Setup)
	}
	if err := o.writeRules(append(cases, exact...), run); err != nil {
		return nil, err
	}
	if err := shell(ctx, o.Load); err != nil {
		return nil, fmt.Errorf("load the rules: %w", err)
	}
	if err := o.await(ctx, run); err != nil {
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
	for i := range exact {
		r.add(&exact[i], o.count(ctx, &exact[i], run))
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

func (o *Options) selected(cases []Case, run string) (chosen []Case) {
	for i := range cases {
		if o.Match == nil || o.Match.MatchString(string(cases[i].Level)+"/"+cases[i].Name) {
			chosen = append(chosen, cases[i].fresh(run))
		}
	}
	return chosen
}

const (
	filePrefix  = "conform-" // of the rule files in the directory
	probeDomain = "conform-probe-"
)

func (o *Options) writeRules(cases []Case, run string) error {
	old, err := filepath.Glob(filepath.Join(o.Rules, filePrefix+"*.yaml"))
	if err != nil {
		return fmt.Errorf("find the rule files of earlier runs: %w", err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("remove the rule file of an earlier run: %w", err)
		}
	}
	files := map[string]string{"probe": "domain: " + probeDomain + run + "\ndescriptors:\n  - key: probe\n    rate_limit: {unit: day, requests_per_unit: 0}\n"}
	for i := range cases {
		files[cases[i].Name] = cases[i].Rules
	}
	for name, rules := range files {
		if err := os.WriteFile(filepath.Join(o.Rules, filePrefix+name+".yaml"), []byte(rules), 0o644); err != nil { //nolint:gosec // the service may be another user
			return fmt.Errorf("write the rules: %w", err)
		}
	}
	return nil
}

// await asks for the limit of a probe until the service knows it.
func (o *Options) await(ctx context.Context, run string) error {
	until := time.Now().Add(o.Wait)
	request := request(probeDomain+run, "probe", "")
	for {
		answer, err := o.Ask(ctx, request)
		switch {
		case err == nil && len(answer.GetStatuses()) == 1 && answer.GetStatuses()[0].GetCurrentLimit() != nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(until) && err != nil:
			return fmt.Errorf("ask the service: %w", err)
		case time.Now().After(until):
			return fmt.Errorf("after %s the service does not have the rules in %s: does it read that directory, or does it need a command to load them?", o.Wait, o.Rules)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitMinute waits for the next minute if less than half of this one is left, so that no window ends between two requests.
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
	one.Name, one.Level, one.Why = c.Name, c.Level, c.Why
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
