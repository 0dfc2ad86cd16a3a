package serviceclient

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Fleet is the processes that share a Redis.
type Fleet struct {
	Server      string    `json:"server"`
	ThisProcess string    `json:"this_process"` // the one that answered
	Shared      bool      `json:"shared"`       // it shares a Redis
	ReadAt      time.Time `json:"read_at,omitzero"`
	Error       string    `json:"error,omitempty"` // the others are as they were at ReadAt
	More        uint32    `json:"more"`            // processes that are not listed
	Unreadable  uint32    `json:"unreadable"`      // entries in Redis that are not understood

	Processes []Process `json:"processes"`
}

// Process is what a process said of itself.
type Process struct {
	ID      string    `json:"id"`
	Host    string    `json:"host"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	State   string    `json:"state"` // live, stopped or gone
	Seen    time.Time `json:"seen"`

	RulesDiffer     bool `json:"rules_differ"`
	OverridesDiffer bool `json:"overrides_differ"`

	Rules struct {
		Checksum uint64    `json:"checksum"`
		Since    time.Time `json:"since,omitzero"`
		Count    uint32    `json:"count"`
		Files    uint32    `json:"files"`
		Stale    uint32    `json:"stale"`
		Rejected uint32    `json:"rejected"`
	} `json:"rules"`
	Overrides *ProcessOverrides `json:"overrides"` // null: they are off
	Redis     []ProcessRedis    `json:"redis"`
	Caches    []ProcessCache    `json:"caches"`
	PerSecond struct {
		Passed  float64 `json:"passed"`
		Refused float64 `json:"refused"`
		Failed  float64 `json:"failed"`
		OnError float64 `json:"on_error"`
	} `json:"per_second"`
}

// ProcessOverrides are the overrides that a process has in force.
type ProcessOverrides struct {
	Source  string `json:"source"`
	Version int64  `json:"version"`
	Count   uint32 `json:"count"`
	Error   string `json:"error,omitempty"`
}

// ProcessRedis is what a process sees of one Redis.
type ProcessRedis struct {
	Name         string   `json:"name"`
	OpenBreakers []string `json:"open_breakers"`
	Connections  uint64   `json:"connections"`
}

// ProcessCache is something that a process remembers.
type ProcessCache struct {
	Name    string `json:"name"`
	Entries uint64 `json:"entries"`
}

var stateNames = map[adminv1.ProcessState]string{
	adminv1.ProcessState_PROCESS_STATE_LIVE:    "live",
	adminv1.ProcessState_PROCESS_STATE_STOPPED: "stopped",
	adminv1.ProcessState_PROCESS_STATE_GONE:    "gone",
}

// Fleet lists the processes that share a Redis.
func (c *Client) Fleet(ctx context.Context) (*Fleet, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewFleetServiceClient(c.conn).List(ctx, &adminv1.FleetServiceListRequest{})
	if err != nil {
		return nil, c.failure(err)
	}
	f := &Fleet{
		Server: c.o.Server, ThisProcess: got.GetThisProcess(), Shared: got.GetShared(), ReadAt: timeOf(got.GetReadAt()), Error: got.GetError(),
		More: got.GetMore(), Unreadable: got.GetUnreadable(), Processes: []Process{},
	}
	for _, m := range got.GetProcesses() {
		f.Processes = append(f.Processes, processOf(m))
	}
	return f, nil
}

// timeOf is the zero time for nil.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func processOf(m *adminv1.Process) Process {
	p := Process{
		ID: m.GetId(), Host: m.GetHost(), Version: m.GetVersion(), Started: timeOf(m.GetStarted()), State: stateNames[m.GetState()], Seen: timeOf(m.GetSeen()),
		RulesDiffer: m.GetRulesDiffer(), OverridesDiffer: m.GetOverridesDiffer(), Redis: []ProcessRedis{}, Caches: []ProcessCache{},
	}
	r, s := m.GetRules(), m.GetPerSecond()
	p.Rules.Checksum, p.Rules.Since, p.Rules.Count = r.GetChecksum(), timeOf(r.GetSince()), r.GetCount()
	p.Rules.Files, p.Rules.Stale, p.Rules.Rejected = r.GetFiles(), r.GetStale(), r.GetRejected()
	p.PerSecond.Passed, p.PerSecond.Refused, p.PerSecond.Failed, p.PerSecond.OnError = s.GetPassed(), s.GetRefused(), s.GetFailed(), s.GetOnError()
	if o := m.GetOverrides(); o != nil {
		p.Overrides = &ProcessOverrides{o.GetSource(), o.GetVersion(), o.GetCount(), o.GetError()}
	}
	for _, r := range m.GetRedis() {
		p.Redis = append(p.Redis, ProcessRedis{r.GetName(), append([]string{}, r.GetOpenBreakers()...), r.GetConnections()})
	}
	for _, c := range m.GetCaches() {
		p.Caches = append(p.Caches, ProcessCache{c.GetName(), c.GetEntries()})
	}
	return p
}

// WriteFleet writes processes for people. Times are written as they are from now.
func WriteFleet(to io.Writer, f *Fleet, now time.Time) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROCESS\tSTATE\tVERSION\tSTARTED\tRULES\tOVERRIDES\tREDIS\tPASSED/S\tREFUSED/S\tFAILED/S\tMEMORY")
	ago := func(t time.Time) string { return terminal.Span(max(now.Sub(t), 0)) + " ago" }
	states, differ, older := make(map[string]int), 0, 0
	for i := range f.Processes {
		p := &f.Processes[i]
		states[p.State]++
		name, state := terminal.Clean(p.Host), p.State
		if p.ID == f.ThisProcess {
			name += " (asked)"
		}
		if state != "live" {
			state += ", seen " + ago(p.Seen)
		}
		if p.RulesDiffer {
			differ++
		}
		if p.OverridesDiffer {
			older++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%s\n", name, state, terminal.Clean(p.Version), ago(p.Started), p.rules(), p.overrides(), p.redis(),
			p.PerSecond.Passed, p.PerSecond.Refused, p.PerSecond.Failed, p.memory())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(to, "%d live, %d stopped, %d gone\n", states["live"], states["stopped"], states["gone"])
	for _, line := range []struct {
		shown bool
		text  string
	}{
		{differ > 0, fmt.Sprintf("%d with other rules than most", differ)},
		{older > 0, fmt.Sprintf("%d with other or older overrides than most", older)},
		{!f.Shared, "this process counts in its own memory, and knows no others"},
		{f.Error != "" && f.ReadAt.IsZero(), "the others are not known: " + terminal.Clean(f.Error)},
		{f.Error != "" && !f.ReadAt.IsZero(), "the others as they were " + ago(f.ReadAt) + ": " + terminal.Clean(f.Error)},
		{f.More > 0, fmt.Sprintf("%d more are not listed", f.More)},
		{f.Unreadable > 0, fmt.Sprintf("%d entries in Redis are not understood: they are of another version, or of another program", f.Unreadable)},
	} {
		if line.shown {
			fmt.Fprintln(to, line.text)
		}
	}
	return nil
}

func (p *Process) rules() string {
	if p.Rules.Checksum == 0 {
		return "none"
	}
	s := fmt.Sprintf("%d, checksum %d", p.Rules.Count, p.Rules.Checksum)
	if p.RulesDiffer {
		s += " (differs)"
	}
	if n := p.Rules.Stale + p.Rules.Rejected; n > 0 {
		s += fmt.Sprintf(", %s not in use", terminal.Count(int(n), "file"))
	}
	return s
}

func (p *Process) overrides() string {
	s := "off"
	if o := p.Overrides; o != nil {
		if s = fmt.Sprintf("%d, version %d", o.Count, o.Version); o.Error != "" {
			s += ", " + terminal.Clean(o.Error)
		}
	}
	if p.OverridesDiffer {
		s += " (differs)"
	}
	return s
}

func (p *Process) redis() string {
	var open []string
	for _, r := range p.Redis {
		open = append(open, r.OpenBreakers...)
	}
	switch {
	case len(p.Redis) == 0:
		return "none"
	case len(open) > 0:
		return "no answer: " + terminal.Clean(strings.Join(open, ", "))
	default:
		return "answers"
	}
}

func (p *Process) memory() string {
	var all []string
	for _, c := range p.Caches {
		all = append(all, fmt.Sprintf("%s %d", terminal.Clean(c.Name), c.Entries))
	}
	return strings.Join(all, ", ")
}
