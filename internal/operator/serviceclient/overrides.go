package serviceclient

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// SetOverrides writes overrides: all or none.
func (c *Client) SetOverrides(ctx context.Context,
	r *adminv1.OverrideServiceSetRequest) ([]*adminv1.OverrideChange, error) {
	got, err := ask(ctx, c, adminv1.NewOverrideServiceClient(c.conn).Set, r)
	return got.GetChanges(), err
}

// RemoveOverrides removes overrides: all or none.
func (c *Client) RemoveOverrides(ctx context.Context,
	r *adminv1.OverrideServiceRemoveRequest) ([]*adminv1.OverrideChange, error) {
	got, err := ask(ctx, c, adminv1.NewOverrideServiceClient(c.conn).Remove, r)
	return got.GetChanges(), err
}

// ListOverrides calls visit for each page of the overrides that a request selects.
func (c *Client) ListOverrides(ctx context.Context, r *adminv1.OverrideServiceListRequest,
	visit func([]*adminv1.Override) error) error {
	for r.PageSize = 500; ; {
		got, err := ask(ctx, c, adminv1.NewOverrideServiceClient(c.conn).List, r)
		if err != nil {
			return err
		}
		if err := visit(got.GetOverrides()); err != nil {
			return err
		}
		if r.PageToken = got.GetNextPageToken(); r.PageToken == "" {
			return nil
		}
	}
}

// OverrideHistory returns the last changes, the newest first.
func (c *Client) OverrideHistory(ctx context.Context,
	r *adminv1.OverrideServiceHistoryRequest) (*adminv1.OverrideServiceHistoryResponse, error) {
	return ask(ctx, c, adminv1.NewOverrideServiceClient(c.conn).History, r)
}

// target names the rule and the entries of an override.
func target(o *adminv1.Override) string {
	rule := o.GetRule()
	if !strings.HasPrefix(rule, o.GetDomain()+".") {
		rule = o.GetDomain() + " " + rule
	}
	if o.GetLimit() != "" {
		rule += " (" + o.GetLimit() + ")"
	}
	return terminal.Clean(rule) + "  " + terminal.Clean(entriesText(o.GetEntries()))
}

// WriteOverrides writes overrides for people.
func WriteOverrides(to io.Writer, all []*adminv1.Override) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE AND CUSTOMER\tNUMBERS\tVERSION\tBY\tREASON")
	for _, o := range all {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n",
			target(o), overridepb.Words(o), o.GetVersion(), terminal.Clean(o.GetAuthor()), terminal.Clean(o.GetReason()))
	}
	return w.Flush()
}

// WriteOverrideChanges writes the changes, made or previewed in a dry run, for people.
func WriteOverrideChanges(to io.Writer, changes []*adminv1.OverrideChange, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for _, c := range changes {
		if !w.change(c.GetBefore(), c.GetAfter()) {
			w.Line("no such override: nothing to remove")
		}
		if v := c.GetAfter().GetVersion(); v != 0 {
			w.Line("   version %d", v)
		}
		if n := len(c.GetCleared()); n > 0 {
			w.Line("   counters cleared: %d", n)
		}
		for _, e := range c.GetEffects() {
			w.Line("   %d used: %s -> %s", e.GetUsed(), w.effect(e.GetWordsBefore(), e.GetDeniedBefore()),
				w.effect(e.GetWordsAfter(), e.GetDeniedAfter()))
		}
	}
	return w.Flush()
}

// change writes an override before and after a change. It reports whether at least one of the two exists.
func (w answerWriter) change(before, after *adminv1.Override) bool {
	about := cmp.Or(after, before)
	if about == nil {
		return false
	}
	w.Line("%s", w.Paint(terminal.Bold, target(about)))
	w.Line("   %s -> %s", overridepb.Words(before), overridepb.Words(after))
	return true
}

func (w answerWriter) effect(limit string, denied bool) string {
	if denied {
		return terminal.Clean(limit) + " " + w.Paint(terminal.Red, "(denied)")
	}
	return terminal.Clean(limit) + " " + w.Paint(terminal.Green, "(passes)")
}

// WriteOverrideHistory writes changes for people.
func WriteOverrideHistory(to io.Writer, events []*adminv1.OverrideEvent, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for _, e := range events {
		w.Line("%s  version %d by %s", e.GetAt().AsTime().Format(time.RFC3339), e.GetVersion(), terminal.Clean(e.GetAuthor()))
		w.change(e.GetBefore(), e.GetAfter())
		if e.GetReason() != "" {
			w.Line("   %s", terminal.Clean(e.GetReason()))
		}
	}
	return w.Flush()
}
