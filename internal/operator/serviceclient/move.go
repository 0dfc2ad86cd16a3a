package serviceclient

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// RegionSaid is what a replica of a region said, or why it said nothing.
type RegionSaid struct {
	Region, Address string
	State           *adminv1.ListRegionsResponse
	Err             error
}

// MovePlan is what is left to do until the home has moved.
type MovePlan struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Epoch uint64     `json:"epoch"` // after the move
	Steps []MoveStep `json:"steps"`

	// Wrong is what makes the move unsafe, or what is not known. Empty: all is in order.
	Wrong []string `json:"wrong,omitempty"`
}

// MoveStep is one step of a move.
type MoveStep struct {
	State    string   `json:"state"` // done, now, or later: after the steps before
	What     string   `json:"what"`
	Settings []string `json:"settings,omitempty"`
}

// PlanMove says what is left to do. stopped: the operator knows that the old home has stopped.
func PlanMove(from, to string, stopped bool, all []RegionSaid) (*MovePlan, error) {
	p := &MovePlan{From: from, To: to}
	answered, names := make(map[string][]*adminv1.ListRegionsResponse), make(map[string]bool)
	for _, a := range all {
		switch {
		case a.Err != nil && a.Region == to:
			return nil, fmt.Errorf("%s, of the new home %s: %w", a.Address, a.Region, a.Err)
		case a.Err != nil && stopped && a.Region == from: // that was to be expected
		case a.Err != nil:
			p.Wrong = append(p.Wrong, fmt.Sprintf("%s, of region %s, does not answer: %v", a.Address, a.Region, a.Err))
		case a.State.GetRegion() != a.Region:
			return nil, fmt.Errorf("%s is in region %q, not in %s: correct --ask", a.Address, a.State.GetRegion(), a.Region)
		default:
			answered[a.Region] = append(answered[a.Region], a.State)
			names[a.Region], p.Epoch = true, max(p.Epoch, a.State.GetEpoch())
			for _, r := range a.State.GetRegions() {
				names[r.GetName()] = true
			}
		}
	}
	for _, name := range []string{from, to} {
		if !names[name] {
			return nil, fmt.Errorf("no replica knows a region %s: they know %s", name, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
	}
	list := slices.Sorted(maps.Keys(names))
	moving := func(r *adminv1.ListRegionsResponse) bool { return slices.Contains(r.GetBefore(), from) }
	latest := func(r *adminv1.ListRegionsResponse) bool { return r.GetEpoch() == p.Epoch }
	begun, differ := slices.ContainsFunc(answered[to], func(r *adminv1.ListRegionsResponse) bool { return moving(r) && latest(r) }), false
	for _, of := range answered {
		differ = differ || !every(of, latest)
	}
	missing := false
	for _, r := range answered[to] {
		if (begun || differ) && latest(r) && !moving(r) {
			missing = true
			p.Wrong = append(p.Wrong, fmt.Sprintf("a replica of %s has epoch %d and no RATELIMITD_REGIONS_BEFORE: nobody may count the rules that name it", to, r.GetEpoch()))
		}
	}
	if !begun && (!differ || missing) {
		p.Epoch++
	}

	// The steps of docs/do/regions.md.
	epoch := fmt.Sprintf("RATELIMITD_REGIONS_EPOCH=%d", p.Epoch)
	var old []string // regions whose rules name the old home
	for _, name := range list {
		if slices.ContainsFunc(answered[name], func(r *adminv1.ListRegionsResponse) bool { return limitsOf(r, from) > 0 }) {
			old = append(old, name)
		}
	}
	rules := p.step(len(old) == 0, true, fmt.Sprintf("in the rules of all regions, write `home: %s` for `home: %s`%s", to, from, left(old)))
	settings := []string{"RATELIMITD_REGIONS_BEFORE=" + strings.Join(list, ","), epoch}
	if stopped {
		settings = append(settings, "RATELIMITD_REGIONS_OLD_HOME_STOPPED=true")
	}
	home := p.step(every(answered[to], func(r *adminv1.ListRegionsResponse) bool { return latest(r) && moving(r) }), rules,
		fmt.Sprintf("set these in %s, and restart its replicas", to), settings...)
	var rest []string
	for _, name := range list {
		if name != to && (name != from || !stopped) && !every(answered[name], latest) {
			rest = append(rest, name)
		}
	}
	others := p.step(len(rest) == 0, home, "set this in the other regions, and restart their replicas"+left(rest), epoch)
	acts := every(answered[to], func(r *adminv1.ListRegionsResponse) bool { return latest(r) && moving(r) && r.GetActs() })
	why := ""
	if len(answered[to]) > 0 && home {
		why = answered[to][0].GetReason()
	}
	p.step(acts, home, fmt.Sprintf("wait until %s counts%s", to, strings.TrimSuffix(": "+why, ": ")))
	p.step(false, others && acts, fmt.Sprintf("with the next list of regions, unset RATELIMITD_REGIONS_BEFORE in %s", to))
	if n := limitsOf(answered[to][0], ""); n > 0 {
		p.Wrong = append(p.Wrong, fmt.Sprintf("limits with a home that a hash chooses: %d; that a hash chooses this plan does not move their counters", n))
	}
	for _, name := range old {
		if begun && slices.ContainsFunc(answered[name], latest) {
			p.Wrong = append(p.Wrong, fmt.Sprintf("%s has epoch %d, and rules that name %s: on_error decides until they are changed and the epoch is raised once more", name, p.Epoch, from))
		}
	}
	return p, nil
}

// step adds a step. It returns whether it is done.
func (p *MovePlan) step(done, ready bool, what string, settings ...string) bool {
	state := "later"
	switch {
	case done:
		state = "done"
	case ready:
		state = "now"
	}
	p.Steps = append(p.Steps, MoveStep{State: state, What: what, Settings: settings})
	return done
}

// left is where a step is still to be done.
func left(regions []string) string {
	if len(regions) == 0 {
		return ""
	}
	return "; left: " + strings.Join(regions, ", ")
}

func every(all []*adminv1.ListRegionsResponse, is func(*adminv1.ListRegionsResponse) bool) bool {
	return len(all) > 0 && !slices.ContainsFunc(all, func(r *adminv1.ListRegionsResponse) bool { return !is(r) })
}

// limitsOf is how many limits name a home.
func limitsOf(r *adminv1.ListRegionsResponse, home string) (n uint64) {
	for _, h := range r.GetHomes() {
		if h.GetName() == home {
			n += h.GetLimits()
		}
	}
	return n
}

// Write writes the plan for people.
func (p *MovePlan) Write(w io.Writer) error {
	fmt.Fprintf(w, "home %s moves to %s, with epoch %d\n\n", p.From, p.To, p.Epoch)
	for i, step := range p.Steps {
		fmt.Fprintf(w, "%d. %-5s  %s\n", i+1, step.State, terminal.Clean(step.What))
		for _, line := range step.Settings {
			fmt.Fprintf(w, "            %s\n", line)
		}
	}
	for _, text := range p.Wrong {
		fmt.Fprintf(w, "\n! %s", terminal.Clean(text))
	}
	if len(p.Wrong) > 0 {
		fmt.Fprintln(w)
	}
	return nil
}
