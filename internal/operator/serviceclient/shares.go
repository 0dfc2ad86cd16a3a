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

// Shares has who holds what of the limits of quota buckets.
type Shares struct {
	Server string  `json:"server"`
	Host   string  `json:"host"` // of the process that answered: the clients are its own
	Domain string  `json:"domain"`
	Known  bool    `json:"domain_known"`
	Where  []Entry `json:"where"`

	Buckets []BucketShares `json:"buckets"` // those with most demand first
	Total   uint32         `json:"total"`   // buckets of the domain, listed or not
	More    bool           `json:"more"`    // more may match than are listed
}

// BucketShares is a quota bucket, and who holds what of its limit.
type BucketShares struct {
	Entries     []Entry     `json:"entries"`
	Rule        string      `json:"rule,omitempty"`
	Limit       string      `json:"limit,omitempty"`
	LimitRate   *TokenRate  `json:"limit_rate"` // null: there is no limit to share
	ProcessRate *TokenRate  `json:"process_rate"`
	HeldRate    *TokenRate  `json:"held_rate"`
	Processes   uint32      `json:"processes"` // that share the limit
	Demand      float64     `json:"demand"`    // requests per second
	Clients     uint32      `json:"clients"`
	Held        []HeldShare `json:"held"` // those that hold most first; not all, if there are many
}

// TokenRate is what a token bucket lets pass.
type TokenRate struct {
	PerSecond float64 `json:"per_second"`
	Burst     float64 `json:"burst"`
}

// HeldShare is what one client holds.
type HeldShare struct {
	Client     string     `json:"client"`
	Since      time.Time  `json:"since,omitzero"`
	Demand     float64    `json:"demand"`
	Assignment string     `json:"assignment"` // none, allow_all, deny_all or token_bucket
	Rate       *TokenRate `json:"rate"`       // null: not a token bucket
	Expires    time.Time  `json:"expires,omitzero"`
}

var assignmentNames = map[adminv1.AssignmentKind]string{
	adminv1.AssignmentKind_ASSIGNMENT_KIND_UNSPECIFIED: "none",
	adminv1.AssignmentKind_ASSIGNMENT_KIND_ALLOW_ALL:   "allow_all",
	adminv1.AssignmentKind_ASSIGNMENT_KIND_DENY_ALL:    "deny_all",
	adminv1.AssignmentKind_ASSIGNMENT_KIND_TOKENS:      "token_bucket",
}

// Shares lists quota buckets whose ids have the entries where, at most as many as most says.
func (c *Client) Shares(ctx context.Context, domain string, where []descriptor.Entry, most uint32) (*Shares, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewAdminServiceClient(c.conn).ListShares(ctx, &adminv1.ListSharesRequest{Domain: domain, Entries: messages(where), Limit: most})
	if err != nil {
		return nil, c.failure(err)
	}
	s := &Shares{
		Server: c.o.Server, Host: got.GetHost(), Domain: domain, Known: got.GetDomainKnown(), Where: entriesOf(where),
		Buckets: []BucketShares{}, Total: got.GetTotal(), More: got.GetMore(),
	}
	for _, m := range got.GetBuckets() {
		s.Buckets = append(s.Buckets, bucketOf(m))
	}
	return s, nil
}

func bucketOf(m *adminv1.BucketShares) BucketShares {
	b := BucketShares{
		Entries: []Entry{}, Rule: m.GetRule(), Limit: m.GetLimit(), LimitRate: rateOf(m.GetLimitRate()), ProcessRate: rateOf(m.GetProcessRate()), HeldRate: rateOf(m.GetHeldRate()),
		Processes: m.GetProcesses(), Demand: m.GetDemand(), Clients: m.GetClients(), Held: []HeldShare{},
	}
	for _, e := range m.GetEntries() {
		b.Entries = append(b.Entries, Entry{e.GetKey(), e.GetValue()})
	}
	for _, h := range m.GetHeld() {
		b.Held = append(b.Held, HeldShare{h.GetClient(), timeOf(h.GetSince()), h.GetDemand(), assignmentNames[h.GetKind()], rateOf(h.GetRate()), timeOf(h.GetExpires())})
	}
	return b
}

func rateOf(m *adminv1.TokenRate) *TokenRate {
	if m == nil {
		return nil
	}
	return &TokenRate{m.GetPerSecond(), m.GetBurst()}
}

// WriteShares writes shares for people. Times are written as they are from now.
func WriteShares(to io.Writer, s *Shares, now time.Time, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for i := range s.Buckets {
		w.bucket(&s.Buckets[i], now)
	}
	switch {
	case !s.Known && len(s.Buckets) == 0:
		w.Line("no rules are loaded for the domain %q", terminal.Clean(s.Domain))
	case len(s.Buckets) == 0 && len(s.Where) > 0:
		w.Line("no client of this process uses a quota bucket of this domain with these entries")
	case len(s.Buckets) == 0:
		w.Line("no client of this process uses a quota bucket of this domain")
	default:
		of := ""
		if int(s.Total) > len(s.Buckets) {
			of = fmt.Sprintf("%d of ", len(s.Buckets))
		}
		w.Line("%s%s, with the clients of %s", of, terminal.Count(max(int(s.Total), len(s.Buckets)), "bucket"), terminal.Clean(s.Host))
	}
	if s.More {
		w.Line("there may be more: use --most, or --where")
	}
	return w.Flush()
}

func (w answerWriter) bucket(b *BucketShares, now time.Time) {
	w.Line("%s", w.Paint(terminal.Bold, terminal.Clean(entriesText(b.Entries))))
	if b.Rule == "" {
		w.row("rule", "none")
	} else {
		w.row("rule", "%s", terminal.Clean(b.Rule))
	}
	if b.Limit != "" {
		w.row("limit", "%s", terminal.Clean(b.Limit))
	}
	if b.ProcessRate != nil && b.Processes > 1 {
		w.row("process", "%s, burst %.0f: its part of the limit, which %d processes share", perTime(b.ProcessRate.PerSecond), b.ProcessRate.Burst, b.Processes)
	}
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLIENT\tMAY PASS\tBURST\tDEMAND\tSINCE\tEXPIRES")
	for i := range b.Held {
		h := &b.Held[i]
		passes, burst := h.passes()
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", terminal.Clean(h.Client), passes, burst, perTime(h.Demand), since(h.Since, now), expires(h.Expires, now))
	}
	if more := int(b.Clients) - len(b.Held); more > 0 {
		fmt.Fprintf(t, "%d more\t\t\t\t\t\n", more)
	}
	passes, burst := "", ""
	if b.HeldRate != nil {
		passes, burst = perTime(b.HeldRate.PerSecond), fmt.Sprintf("%.0f", b.HeldRate.Burst)
	}
	fmt.Fprintf(t, "total\t%s\t%s\t%s\t\t\n", passes, burst, perTime(b.Demand))
	_ = t.Flush() // into memory
	for line := range strings.Lines(table.String()) {
		w.Line("%s", strings.TrimRight(line, " \n"))
	}
	w.Line("")
}

func (h *HeldShare) passes() (rate, burst string) {
	switch {
	case h.Rate != nil:
		return perTime(h.Rate.PerSecond), fmt.Sprintf("%.0f", h.Rate.Burst)
	case h.Assignment == "allow_all":
		return "everything", ""
	case h.Assignment == "deny_all":
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
