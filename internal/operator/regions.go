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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ListRegions implements adminconnect.AdminServiceHandler.
func (a *admin) ListRegions(context.Context, *adminv1.ListRegionsRequest) (*adminv1.ListRegionsResponse, error) {
	return regionsMessage(a.regions, a.rules.Tree), nil
}

// regionsMessage is what the replica knows. status is nil if no region is set.
func regionsMessage(status func() regions.Status, rules func() *descriptor.Tree) *adminv1.ListRegionsResponse {
	if status == nil {
		return &adminv1.ListRegionsResponse{}
	}
	st := status()
	m := &adminv1.ListRegionsResponse{Region: st.Region, Epoch: st.Epoch, Acts: st.Acts, Reason: st.Why, Before: st.Before, Homes: homesOf(rules), Cold: uint64(st.Cold), Starved: uint64(st.Starved)}
	if st.Acts {
		m.ActsFor = durationpb.New(st.For)
	}
	for i := range st.Peers {
		p := &st.Peers[i]
		r := &adminv1.Region{Name: p.Region, Answered: timestampOf(p.Heard), Asked: timestampOf(p.Asked), Consented: timestampOf(p.Consented), Epoch: p.Epoch}
		if p.Err != nil {
			r.Error = validText(p.Err.Error())
		}
		if p.RTT > 0 {
			r.Rtt = durationpb.New(p.RTT)
		}
		if f := &p.Refusal; !f.At.IsZero() {
			r.Refused = &adminv1.RegionRefusal{At: timestampOf(f.At), Reason: validText(string(f.Why)), Domain: validText(f.Domain)}
			for _, key := range f.Keys {
				r.Refused.Keys = append(r.Refused.Keys, validText(key))
			}
		}
		m.Regions = append(m.Regions, r)
	}
	for i := range st.Rules[:min(len(st.Rules), mostRegionRules)] {
		r := &st.Rules[i]
		m.Rules = append(m.Rules, &adminv1.RegionRule{
			Rule: validText(r.Rule), Mode: descriptor.RegionModeNames[r.Mode], Home: r.Home,
			Counters: uint64(r.Counters), Permits: uint64(max(r.Permits, 0)), OtherLimit: uint64(r.Other),
		})
	}
	for _, k := range st.Kept[:min(len(st.Kept), mostRegionRules)] {
		m.KeptHomes = append(m.KeptHomes, &adminv1.KeptHome{Rule: validText(k.Rule), Named: k.Named, Home: k.Home})
	}
	return m
}

// homesOf counts the homes that the active rules name.
func homesOf(rules func() *descriptor.Tree) (all []*adminv1.RegionHome) {
	if rules == nil {
		return nil
	}
	tree := rules()
	if tree == nil { // none are loaded yet
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

// mostRegionRules is how many rules each list of an answer has.
const mostRegionRules = 1000

// writeRegions writes the page /regions, in the words of `ratelimitd regions`.
func writeRegions(w http.ResponseWriter, opts *Options) {
	var b bytes.Buffer
	_ = WriteRegions(&b, regionsMessage(opts.Regions, opts.Rules.Tree), time.Now()) // into memory
	endpoint.WriteText(w, http.StatusOK, b.String())
}

// WriteRegions writes what a replica knows about the other regions, for people. Times are written as they are from now.
func WriteRegions(to io.Writer, r *adminv1.ListRegionsResponse, now time.Time) error {
	var b strings.Builder
	if r.GetRegion() == "" {
		_, err := io.WriteString(to, "no region is set: RATELIMITD_REGION\n")
		return err
	}
	fmt.Fprintf(&b, "region %s, epoch %d\n", terminal.Clean(r.GetRegion()), r.GetEpoch())
	if r.GetActs() {
		fmt.Fprintf(&b, "it counts for the others; without their consent it stops in %s\n", r.GetActsFor().AsDuration().Round(time.Second))
	} else {
		fmt.Fprintf(&b, "it does not count for the others: %s\n", terminal.Clean(r.GetReason()))
	}
	var homes []string
	for _, h := range r.GetHomes() {
		homes = append(homes, fmt.Sprintf("%s %d", cmp.Or(terminal.Clean(h.GetName()), "chosen by a hash"), h.GetLimits()))
	}
	fmt.Fprintf(&b, "homes of limits in the rules: %s\n", cmp.Or(strings.Join(homes, ", "), "none"))
	fmt.Fprintf(&b, "attempts that waited for a home: %d; without an answer: %d\n\n", r.GetCold(), r.GetStarved())
	writePeers(&b, r, now)
	writeRegionRules(&b, r)
	writeKeptHomes(&b, r)
	_, err := io.WriteString(to, b.String())
	return err
}

// writePeers writes a table of the other regions, and below it why one does not answer.
func writePeers(b *strings.Builder, r *adminv1.ListRegionsResponse, now time.Time) {
	ago := func(at *timestamppb.Timestamp) string {
		if at == nil {
			return "never"
		}
		return max(now.Sub(at.AsTime()), 0).Round(time.Second).String() + " ago"
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "REGION\tSTATE\tROUND TRIP\tANSWERED\tASKED\tCONSENTED\tEPOCH")
	var notes []string
	for _, p := range r.GetRegions() {
		name, state, rtt, epoch := terminal.Clean(p.GetName()), "up", "-", "-"
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
		if p.GetEpoch() > 0 {
			epoch = strconv.FormatUint(p.GetEpoch(), 10)
			if p.GetEpoch() != r.GetEpoch() {
				epoch += " (differs)"
			}
		}
		if f := p.GetRefused(); f != nil {
			notes = append(notes, fmt.Sprintf("%s: %s it did not answer a question about %s: %s", name, ago(f.GetAt()),
				terminal.Clean(f.GetDomain()+" "+strings.Join(f.GetKeys(), ",")), terminal.Clean(f.GetReason())))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, state, rtt, ago(p.GetAnswered()), ago(p.GetAsked()), ago(p.GetConsented()), epoch)
	}
	_ = t.Flush() // into memory
	for _, note := range notes {
		fmt.Fprintln(b, note)
	}
}

// writeRegionRules writes a table of the rules that count across regions.
func writeRegionRules(b *strings.Builder, r *adminv1.ListRegionsResponse) {
	if len(r.GetRules()) == 0 {
		return
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tMODE\tHOME\tCOUNTERS\tPERMITS")
	for _, rule := range r.GetRules() {
		permits := "-"
		switch {
		case rule.GetMode() != descriptor.RegionModeNames[descriptor.InEscrow]:
		case rule.GetHome() == r.GetRegion():
			permits = fmt.Sprintf("%d granted to others", rule.GetPermits())
		default:
			permits = fmt.Sprintf("%d held here", rule.GetPermits())
		}
		if n := rule.GetOtherLimit(); n > 0 {
			permits += fmt.Sprintf(", another limit at the home: %d", n)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", terminal.Clean(rule.GetRule()), rule.GetMode(), terminal.Clean(rule.GetHome()), rule.GetCounters(), permits)
	}
	_ = t.Flush() // into memory
}

// writeKeptHomes writes which rules name another home than the one that counts.
func writeKeptHomes(b *strings.Builder, r *adminv1.ListRegionsResponse) {
	named := func(home string) string { return terminal.Clean(cmp.Or(home, "a home by hash")) }
	for _, k := range r.GetKeptHomes() {
		fmt.Fprintf(b, "the rule %s names %s, but %s stays the home until the epoch is raised\n", terminal.Clean(k.GetRule()), named(k.GetNamed()), named(k.GetHome()))
	}
}
