package serviceclient

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Override is an override of a server. One of RequestsPerUnit, Factor, Unlimited and Blocked is set.
type Override struct {
	Domain  string  `json:"domain"`
	Rule    string  `json:"rule"`
	Limit   string  `json:"limit,omitempty"`
	Entries []Entry `json:"entries"`

	RequestsPerUnit *uint64 `json:"requests_per_unit,omitempty"`
	Burst           uint64  `json:"burst,omitempty"`
	Factor          float64 `json:"factor,omitempty"`
	Unlimited       bool    `json:"unlimited,omitempty"`
	Blocked         bool    `json:"blocked,omitempty"`

	NotBefore time.Time `json:"not_before,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Reason    string    `json:"reason,omitempty"`

	Author    string    `json:"author,omitempty"` // these three are set by the server
	Version   int64     `json:"version,omitempty"`
	ChangedAt time.Time `json:"changed_at,omitzero"`
}

// OverrideChange is an override before and after a change. Effects are what a dry run shows.
type OverrideChange struct {
	Before  *Override `json:"before,omitempty"`
	After   *Override `json:"after,omitempty"`
	Effects []Effect  `json:"effects,omitempty"`
	Cleared int       `json:"cleared,omitempty"` // counters
}

// ChangeOptions say how overrides are changed.
type ChangeOptions struct {
	Remove bool
	DryRun bool   // change nothing, and show what would happen
	Reset  bool   // clear the callers' counters afterwards; not together with Remove
	Expect *int64 // the version that each must have; nil: any
}

// Effect is what a change does to a counter now.
type Effect struct {
	Limit          string `json:"limit,omitempty"`
	Key            string `json:"key"`
	Used           uint64 `json:"used"`
	Before         string `json:"before"`
	After          string `json:"after"`
	CapacityBefore uint64 `json:"capacity_before"`
	CapacityAfter  uint64 `json:"capacity_after"`
	RefusedBefore  bool   `json:"refused_before"`
	RefusedAfter   bool   `json:"refused_after"`
}

// OverrideEvent is one change of the past.
type OverrideEvent struct {
	Version int64     `json:"version"`
	At      time.Time `json:"at"`
	Author  string    `json:"author,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Before  *Override `json:"before,omitempty"`
	After   *Override `json:"after,omitempty"`
}

// OverrideQuery selects overrides.
type OverrideQuery struct {
	Domain, Rule string
	Where        []descriptor.Entry
}

func (q *OverrideQuery) where() map[string]string {
	if len(q.Where) == 0 {
		return nil
	}
	all := make(map[string]string, len(q.Where))
	for _, e := range q.Where {
		all[e.Key] = e.Value
	}
	return all
}

// ChangeOverrides writes or removes overrides: all or none.
func (c *Client) ChangeOverrides(ctx context.Context, all []Override, o ChangeOptions) ([]OverrideChange, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	writes := make([]*adminv1.OverrideWrite, len(all))
	for i := range all {
		writes[i] = &adminv1.OverrideWrite{Override: all[i].message(), ExpectVersion: o.Expect}
	}
	client := adminv1.NewOverrideServiceClient(c.conn)
	var got interface {
		GetChanges() []*adminv1.OverrideChange
	}
	var err error
	if o.Remove {
		got, err = client.Remove(ctx, &adminv1.OverrideServiceRemoveRequest{Writes: writes, DryRun: o.DryRun})
	} else {
		got, err = client.Set(ctx, &adminv1.OverrideServiceSetRequest{Writes: writes, DryRun: o.DryRun, ResetCounters: o.Reset})
	}
	if err != nil {
		return nil, c.failure(err)
	}
	changes := make([]OverrideChange, 0, len(all))
	for _, m := range got.GetChanges() {
		change := OverrideChange{Before: overrideOf(m.GetBefore()), After: overrideOf(m.GetAfter()), Cleared: len(m.GetCleared())}
		for _, e := range m.GetEffects() {
			change.Effects = append(change.Effects, Effect{
				Limit: e.GetLimit(), Key: string(e.GetCounterKey()), Used: e.GetUsed(), Before: e.GetWordsBefore(), After: e.GetWordsAfter(),
				CapacityBefore: e.GetCapacityBefore(), CapacityAfter: e.GetCapacityAfter(), RefusedBefore: e.GetRefusedBefore(), RefusedAfter: e.GetRefusedAfter(),
			})
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// Size is about how many bytes of a request an override takes.
func (o *Override) Size() int { return proto.Size(o.message()) + 16 }

// ListOverrides calls visit for each page of the overrides.
func (c *Client) ListOverrides(ctx context.Context, q OverrideQuery, visit func([]Override) error) error {
	const perPage = 500
	for token := ""; ; {
		page, next, err := c.overridesPage(ctx, &adminv1.OverrideServiceListRequest{
			Domain: q.Domain, Rule: q.Rule, Where: q.where(), PageSize: perPage, PageToken: token,
		})
		if err != nil {
			return err
		}
		if err := visit(page); err != nil {
			return err
		}
		if token = next; token == "" {
			return nil
		}
	}
}

func (c *Client) overridesPage(ctx context.Context, req *adminv1.OverrideServiceListRequest) ([]Override, string, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewOverrideServiceClient(c.conn).List(ctx, req)
	if err != nil {
		return nil, "", c.failure(err)
	}
	page := make([]Override, 0, len(got.GetOverrides()))
	for _, m := range got.GetOverrides() {
		page = append(page, *overrideOf(m))
	}
	return page, got.GetNextPageToken(), nil
}

// OverrideHistory returns the last changes, at most n, the newest first.
func (c *Client) OverrideHistory(ctx context.Context, q OverrideQuery, n uint32) ([]OverrideEvent, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewOverrideServiceClient(c.conn).History(ctx, &adminv1.OverrideServiceHistoryRequest{
		Domain: q.Domain, Rule: q.Rule, Where: q.where(), PageSize: n,
	})
	if err != nil {
		return nil, c.failure(err)
	}
	events := make([]OverrideEvent, 0, len(got.GetEvents()))
	for _, m := range got.GetEvents() {
		events = append(events, OverrideEvent{
			Version: m.GetVersion(), At: m.GetAt().AsTime(), Author: m.GetAuthor(), Reason: m.GetReason(),
			Before: overrideOf(m.GetBefore()), After: overrideOf(m.GetAfter()),
		})
	}
	return events, nil
}

func (o *Override) message() *adminv1.Override {
	m := &adminv1.Override{
		Domain: o.Domain, Rule: o.Rule, Limit: o.Limit, RequestsPerUnit: o.RequestsPerUnit, Burst: o.Burst, Factor: o.Factor,
		Unlimited: o.Unlimited, Blocked: o.Blocked, Reason: o.Reason,
	}
	for _, e := range o.Entries {
		m.Entries = append(m.Entries, &adminv1.Entry{Key: e.Key, Value: e.Value})
	}
	if !o.NotBefore.IsZero() {
		m.NotBefore = timestamppb.New(o.NotBefore)
	}
	if !o.ExpiresAt.IsZero() {
		m.ExpiresAt = timestamppb.New(o.ExpiresAt)
	}
	return m
}

func overrideOf(m *adminv1.Override) *Override {
	if m == nil {
		return nil
	}
	o := &Override{
		Domain: m.GetDomain(), Rule: m.GetRule(), Limit: m.GetLimit(), Entries: []Entry{}, RequestsPerUnit: m.RequestsPerUnit, Burst: m.GetBurst(),
		Factor: m.GetFactor(), Unlimited: m.GetUnlimited(), Blocked: m.GetBlocked(), Reason: m.GetReason(), Author: m.GetAuthor(), Version: m.GetVersion(),
	}
	for _, e := range m.GetEntries() {
		o.Entries = append(o.Entries, Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	for to, from := range map[*time.Time]*timestamppb.Timestamp{&o.NotBefore: m.GetNotBefore(), &o.ExpiresAt: m.GetExpiresAt(), &o.ChangedAt: m.GetChangedAt()} {
		if from != nil {
			*to = from.AsTime()
		}
	}
	return o
}

// words is what an override does.
func (o *Override) words() string {
	var s string
	switch {
	case o == nil:
		return "none"
	case o.Unlimited:
		s = "unlimited"
	case o.Blocked:
		s = "blocked"
	case o.RequestsPerUnit != nil:
		if s = strconv.FormatUint(*o.RequestsPerUnit, 10); o.Burst != 0 {
			s += fmt.Sprintf(", burst %d", o.Burst)
		}
	default:
		s = "factor " + strconv.FormatFloat(o.Factor, 'f', -1, 64)
	}
	if !o.NotBefore.IsZero() {
		s += ", from " + o.NotBefore.Format(time.RFC3339)
	}
	if !o.ExpiresAt.IsZero() {
		s += ", until " + o.ExpiresAt.Format(time.RFC3339)
	}
	return s
}

// target is what an override is about.
func (o *Override) target() string {
	rule := o.Rule
	if !strings.HasPrefix(rule, o.Domain+".") {
		rule = o.Domain + " " + rule
	}
	if o.Limit != "" {
		rule += " (" + o.Limit + ")"
	}
	return terminal.Clean(rule) + "  " + terminal.Clean(entriesText(o.Entries))
}

// WriteOverrides writes overrides for people, with headings before the first page.
func WriteOverrides(to io.Writer, page []Override, first bool) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if first {
		fmt.Fprintln(w, "RULE AND CALLER\tNUMBERS\tVERSION\tBY\tREASON")
	}
	for i := range page {
		o := &page[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", o.target(), o.words(), o.Version, terminal.Clean(o.Author), terminal.Clean(o.Reason))
	}
	return w.Flush()
}

// WriteOverrideChanges writes what was changed, or in a dry run what would be, for people.
func WriteOverrideChanges(to io.Writer, changes []OverrideChange, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for i := range changes {
		c := &changes[i]
		about := c.After
		if about == nil {
			about = c.Before
		}
		if about == nil {
			w.Line("no such override: nothing to remove")
		} else {
			w.Line("%s", w.Paint(terminal.Bold, about.target()))
			w.Line("   %s -> %s", c.Before.words(), c.After.words())
			if c.After != nil && c.After.Version != 0 {
				w.Line("   version %d", c.After.Version)
			}
			if c.Cleared > 0 {
				w.Line("   counters cleared: %d", c.Cleared)
			}
		}
		for _, e := range c.Effects {
			w.Line("   %d used: %s -> %s", e.Used, w.effect(e.Before, e.RefusedBefore), w.effect(e.After, e.RefusedAfter))
		}
	}
	return w.Flush()
}

func (w answerWriter) effect(limit string, refused bool) string {
	if refused {
		return terminal.Clean(limit) + " " + w.Paint(terminal.Red, "(denied)")
	}
	return terminal.Clean(limit) + " " + w.Paint(terminal.Green, "(passes)")
}

// WriteOverrideHistory writes changes for people.
func WriteOverrideHistory(to io.Writer, events []OverrideEvent, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for i := range events {
		e := &events[i]
		about := e.After
		if about == nil {
			about = e.Before
		}
		if about == nil {
			continue
		}
		w.Line("%s  version %d by %s", e.At.Format(time.RFC3339), e.Version, terminal.Clean(e.Author))
		w.Line("   %s", w.Paint(terminal.Bold, about.target()))
		w.Line("   %s -> %s", e.Before.words(), e.After.words())
		if e.Reason != "" {
			w.Line("   %s", terminal.Clean(e.Reason))
		}
	}
	return w.Flush()
}
