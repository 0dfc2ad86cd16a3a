package operator

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ListRegions implements adminconnect.AdminServiceHandler.
func (a *admin) ListRegions(context.Context, *adminv1.ListRegionsRequest) (*adminv1.ListRegionsResponse, error) {
	return regionsMessage(&a.regions, a.rules.tree()), nil
}

// regionsMessage returns the replica's state of the regions.
func regionsMessage(of *Regions, tree *descriptor.Tree) *adminv1.ListRegionsResponse {
	if of.Status == nil {
		return &adminv1.ListRegionsResponse{}
	}
	st := of.Status()
	m := &adminv1.ListRegionsResponse{Region: st.Region, Homes: homesOf(tree), Waited: uint64(st.Waited),
		Unanswered: uint64(st.Unanswered)}
	for i := range st.Peers {
		p := &st.Peers[i]
		r := &adminv1.Region{Name: p.Region, Answered: timestampOf(p.Heard), Asked: timestampOf(p.Asked),
			Rules: rulesMatches[p.Rules]}
		if p.Err != nil {
			r.Error = validText(p.Err.Error())
		}
		if p.RTT > 0 {
			r.Rtt = durationpb.New(p.RTT)
		}
		if f := &p.Rejection; !f.At.IsZero() {
			r.Rejected = &adminv1.RegionRejection{At: timestampOf(f.At), Reason: validText(string(f.Why)),
				Domain: validText(f.Domain)}
			for _, key := range f.Keys {
				r.Rejected.Keys = append(r.Rejected.Keys, validText(key))
			}
		}
		m.Regions = append(m.Regions, r)
	}
	return m
}

// rulesMatches are the texts of regions.RulesMatch.
var rulesMatches = map[regions.RulesMatch]string{regions.RulesSame: "same", regions.RulesDiffer: "differ"}

// nameHomes names the regions that count a descriptor.
func (r *Regions) nameHomes(x *descriptor.Explanation, m *adminv1.Rule) {
	if r.Status == nil || r.HomeElsewhere == nil {
		return
	}
	for i, limit := range m.GetLimits() {
		l := &x.Rule.Limits[i]
		if l.Regions == nil || !l.Regions.HasHome() {
			continue
		}
		home, elsewhere := r.HomeElsewhere(limit.GetCounterKey(), l)
		if !elsewhere {
			home = r.Status().Region
		}
		limit.CountingRegion = validText(home)
	}
}

// homesOf counts the homes that rules name. The tree is nil if none are loaded yet.
func homesOf(tree *descriptor.Tree) (all []*adminv1.RegionHome) {
	if tree == nil {
		return nil
	}
	limits := make(map[string]uint64)
	for _, r := range tree.Rules {
		for i := range r.Limits {
			if of := r.Limits[i].Regions; of != nil && of.HasHome() {
				limits[of.Home]++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		all = append(all, &adminv1.RegionHome{Name: validText(name), Limits: limits[name]})
	}
	return all
}

// writeRegions writes the page /regions, in the words of `ratelimitd regions`.
func writeRegions(w http.ResponseWriter, opts *Options) {
	var b bytes.Buffer
	_ = WriteRegions(&b, regionsMessage(&opts.Regions, opts.Rules.tree()), time.Now()) // into memory
	endpoint.WriteText(w, http.StatusOK, b.String())
}

// WriteRegions writes a replica's state of the other regions, for people. Times are relative to now.
func WriteRegions(to io.Writer, r *adminv1.ListRegionsResponse, now time.Time) error {
	var b strings.Builder
	if r.GetRegion() == "" {
		_, err := io.WriteString(to, "no region is set: RATELIMITD_REGION\n")
		return err
	}
	var homes []string
	for _, h := range r.GetHomes() {
		homes = append(homes, fmt.Sprintf("%s %d", cmp.Or(terminal.Clean(h.GetName()), "chosen by a hash"), h.GetLimits()))
	}
	fmt.Fprintf(&b,
		"region %s\nhomes of limits in the rules: %s\nattempts that waited for a home: %d; without an answer: %d\n\n",
		terminal.Clean(r.GetRegion()), cmp.Or(strings.Join(homes, ", "), "none"), r.GetWaited(), r.GetUnanswered())
	writePeers(&b, r.GetRegions(), now)
	_, err := io.WriteString(to, b.String())
	return err
}

// writePeers writes a table of the other regions, and below it their errors.
func writePeers(b *strings.Builder, all []*adminv1.Region, now time.Time) {
	ago := func(at *timestamppb.Timestamp) string {
		if at == nil {
			return "never"
		}
		return max(now.Sub(at.AsTime()), 0).Round(time.Second).String() + " ago"
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REGION\tSTATE\tROUND TRIP\tRULES\tANSWERED\tASKED")
	var notes []string
	for _, p := range all {
		name, state, rtt := terminal.Clean(p.GetName()), "up", "-"
		switch {
		case p.GetError() != "":
			state = "down"
			notes = append(notes, fmt.Sprintf("%s: last error: %s", name, terminal.Clean(p.GetError())))
		case p.GetAnswered() == nil:
			state = "not asked yet"
		}
		if p.GetRtt() != nil {
			rtt = terminal.Span(p.GetRtt().AsDuration())
		}
		if f := p.GetRejected(); f != nil {
			notes = append(notes, fmt.Sprintf("%s: %s it did not count a query about %s: %s", name, ago(f.GetAt()),
				terminal.Clean(f.GetDomain()+" "+strings.Join(f.GetKeys(), ",")), terminal.Clean(f.GetReason())))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", name, state, rtt, cmp.Or(terminal.Clean(p.GetRules()), "-"),
			ago(p.GetAnswered()), ago(p.GetAsked()))
	}
	_ = t.Flush() // into memory
	for _, note := range notes {
		fmt.Fprintln(b, note)
	}
}
