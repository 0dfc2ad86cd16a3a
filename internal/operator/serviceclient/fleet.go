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

var stateNames = map[adminv1.ReplicaState]string{
	adminv1.ReplicaState_REPLICA_STATE_LIVE:    "live",
	adminv1.ReplicaState_REPLICA_STATE_STOPPED: "stopped",
	adminv1.ReplicaState_REPLICA_STATE_GONE:    "gone",
}

// Fleet lists the replicas that share a Redis.
func (c *Client) Fleet(ctx context.Context) (*adminv1.FleetServiceListResponse, error) {
	return ask(ctx, c, adminv1.NewFleetServiceClient(c.conn).List, &adminv1.FleetServiceListRequest{})
}

// timeOf is the zero time for nil.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// WriteFleet writes replicas for people. Times are written as they are from now.
func WriteFleet(to io.Writer, f *adminv1.FleetServiceListResponse, now time.Time) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REPLICA\tSTATE\tVERSION\tSTARTED\tRULES\tOVERRIDES\tREDIS\tPASSED/S\tDENIED/S\tFAILED/S\tMEMORY")
	ago := func(t *timestamppb.Timestamp) string { return terminal.Span(max(now.Sub(timeOf(t)), 0)) + " ago" }
	states, differ, older := make(map[string]int), 0, 0
	for _, p := range f.GetReplicas() {
		id := p.GetId()
		// same format as on the console
		name, state := terminal.Clean(p.GetHost()+" "+id[:min(len(id), 6)]), stateNames[p.GetState()]
		states[state]++
		if p.GetId() == f.GetThisReplica() {
			name += " (asked)"
		}
		if state != "live" {
			state += ", seen " + ago(p.GetSeen())
		}
		if p.GetRulesDiffer() {
			differ++
		}
		if p.GetOverridesDiffer() {
			older++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%s\n",
			name, state, terminal.Clean(p.GetVersion()), ago(p.GetStarted()), rulesOf(p), overridesOf(p), redisOf(p),
			p.GetPerSecond().GetPassed(), p.GetPerSecond().GetDenied(), p.GetPerSecond().GetFailed(), memoryOf(p))
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
		{!f.GetShared(), "this replica counts in its own memory, and knows no others"},
		{f.GetError() != "" && f.GetReadAt() == nil, "the others are not known: " + terminal.Clean(f.GetError())},
		{f.GetError() != "" && f.GetReadAt() != nil, "the others as they were " + ago(f.GetReadAt()) + ": " +
			terminal.Clean(f.GetError())},
		{f.GetMore() > 0, fmt.Sprintf("%d more are not listed", f.GetMore())},
		{f.GetUnreadable() > 0,
			fmt.Sprintf("%d entries in Redis are not understood: they are of another version, or of another program",
				f.GetUnreadable())},
	} {
		if line.shown {
			fmt.Fprintln(to, line.text)
		}
	}
	return nil
}

func rulesOf(p *adminv1.Replica) string {
	if p.GetRules().GetChecksum() == 0 {
		return "none"
	}
	s := fmt.Sprintf("%d, checksum %d", p.GetRules().GetCount(), p.GetRules().GetChecksum())
	if p.GetRulesDiffer() {
		s += " (differs)"
	}
	if n := p.GetRules().GetStale() + p.GetRules().GetRejected(); n > 0 {
		s += fmt.Sprintf(", %s not in use", terminal.Count(int(n), "file"))
	}
	return s
}

func overridesOf(p *adminv1.Replica) string {
	s := "off"
	if o := p.GetOverrides(); o != nil {
		if s = fmt.Sprintf("%d, version %d", o.GetCount(), o.GetVersion()); o.GetError() != "" {
			s += ", " + terminal.Clean(o.GetError())
		}
	}
	if p.GetOverridesDiffer() {
		s += " (differs)"
	}
	return s
}

func redisOf(p *adminv1.Replica) string {
	var open []string
	for _, r := range p.GetRedis() {
		open = append(open, r.GetOpenBreakers()...)
	}
	switch {
	case len(p.GetRedis()) == 0:
		return "none"
	case len(open) > 0:
		return "no answer: " + terminal.Clean(strings.Join(open, ", "))
	default:
		return "answers"
	}
}

func memoryOf(p *adminv1.Replica) string {
	var all []string
	for _, c := range p.GetCaches() {
		all = append(all, fmt.Sprintf("%s %d", terminal.Clean(c.GetName()), c.GetEntries()))
	}
	return strings.Join(all, ", ")
}
