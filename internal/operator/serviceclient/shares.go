package serviceclient

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Shares lists at most most quota buckets whose ids have the entries where.
func (c *Client) Shares(ctx context.Context, domain string, where []descriptor.Entry,
	most uint32) (*adminv1.ListSharesResponse, error) {
	return ask(ctx, c, adminv1.NewAdminServiceClient(c.conn).ListShares,
		&adminv1.ListSharesRequest{Domain: domain, Entries: Entries(where), Limit: most})
}

// WriteShares writes the shares of a domain for people; selected is set if only some buckets were asked for. Times are
// relative to now.
func WriteShares(to io.Writer, domain string, selected bool, s *adminv1.ListSharesResponse, now time.Time,
	color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for _, b := range s.GetBuckets() {
		w.bucket(b, now)
	}
	switch {
	case !s.GetDomainKnown() && len(s.GetBuckets()) == 0:
		w.Line("no rules are loaded for the domain %q", terminal.Clean(domain))
	case len(s.GetBuckets()) == 0 && selected:
		w.Line("no client of this replica uses a quota bucket of this domain with these entries")
	case len(s.GetBuckets()) == 0:
		w.Line("no client of this replica uses a quota bucket of this domain")
	default:
		of := ""
		if int(s.GetTotal()) > len(s.GetBuckets()) {
			of = fmt.Sprintf("%d of ", len(s.GetBuckets()))
		}
		w.Line("%s%s, with the clients of %s", of, terminal.Count(max(int(s.GetTotal()), len(s.GetBuckets())), "bucket"),
			terminal.Clean(s.GetHost()))
	}
	if s.GetMore() {
		w.Line("there may be more: use --most, or --where")
	}
	return w.Flush()
}

func (w answerWriter) bucket(b *adminv1.BucketShares, now time.Time) {
	w.Line("%s", w.Paint(terminal.Bold, terminal.Clean(entriesText(b.GetEntries()))))
	if b.GetRule() == "" {
		w.row("rule", "none")
	} else {
		w.row("rule", "%s", terminal.Clean(b.GetRule()))
	}
	if b.GetLimit() != "" {
		w.row("limit", "%s", terminal.Clean(b.GetLimit()))
	}
	if b.GetReplicaRate() != nil && b.GetReplicas() > 1 {
		w.row("replica", "%s, burst %.0f: its part of the limit, which %d replicas share",
			perTime(b.GetReplicaRate().GetPerSecond()), b.GetReplicaRate().GetBurst(), b.GetReplicas())
	}
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLIENT\tMAY PASS\tBURST\tDEMAND\tSINCE\tEXPIRES")
	for _, h := range b.GetHeld() {
		passes, burst := passesOf(h)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", terminal.Clean(h.GetClient()), passes, burst, perTime(h.GetDemand()),
			since(timeOf(h.GetSince()), now), expires(timeOf(h.GetExpires()), now))
	}
	if more := int(b.GetClients()) - len(b.GetHeld()); more > 0 {
		fmt.Fprintf(t, "%d more\t\t\t\t\t\n", more)
	}
	passes, burst := "", ""
	if b.GetHeldRate() != nil {
		passes, burst = perTime(b.GetHeldRate().GetPerSecond()), fmt.Sprintf("%.0f", b.GetHeldRate().GetBurst())
	}
	fmt.Fprintf(t, "total\t%s\t%s\t%s\t\t\n", passes, burst, perTime(b.GetDemand()))
	_ = t.Flush() // into memory
	for line := range strings.Lines(table.String()) {
		w.Line("%s", strings.TrimRight(line, " \n"))
	}
	w.Line("")
}

func passesOf(h *adminv1.HeldShare) (rate, burst string) {
	switch {
	case h.GetRate() != nil:
		return perTime(h.GetRate().GetPerSecond()), fmt.Sprintf("%.0f", h.GetRate().GetBurst())
	case h.GetKind() == adminv1.AssignmentKind_ASSIGNMENT_KIND_ALLOW_ALL:
		return "everything", ""
	case h.GetKind() == adminv1.AssignmentKind_ASSIGNMENT_KIND_DENY_ALL:
		return "nothing", ""
	default:
		return "not assigned yet", ""
	}
}

func since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return terminal.Span(max(now.Sub(t), 0)) + " ago"
}

func expires(t, now time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case !t.After(now):
		return "expired"
	default:
		return "in " + terminal.Span(t.Sub(now))
	}
}

// perTime writes requests per second for people: per minute, hour or day if they are few.
func perTime(perSecond float64) string {
	for _, unit := range []struct {
		seconds float64
		name    string
	}{{1, "s"}, {60, "min"}, {3600, "h"}, {86400, "day"}} {
		n := perSecond * unit.seconds
		switch {
		case n >= 100 || perSecond == 0:
			return fmt.Sprintf("%.0f/%s", n, unit.name)
		case n >= 1:
			return fmt.Sprintf("%.1f/%s", n, unit.name)
		}
	}
	return fmt.Sprintf("%.3f/day", perSecond*86400)
}
