package serviceclient

import (
	"context"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Usage lists the counters in use of descriptors that have the entries where. It reads pages until it has at least most
// descriptors, or until there are no others. The token of its answer is set if there may be more.
func (c *Client) Usage(ctx context.Context, domain string, where []descriptor.Entry,
	most int) (*adminv1.UsageServiceListResponse, error) {
	all := &adminv1.UsageServiceListResponse{}
	seen := make(map[string]bool) // a descriptor may be on several pages
	for {
		r := &adminv1.UsageServiceListRequest{Domain: domain, Where: Entries(where), PageToken: all.GetNextPageToken()}
		got, err := ask(ctx, c, adminv1.NewUsageServiceClient(c.conn).List, r)
		if err != nil {
			return nil, err
		}
		for _, u := range got.GetUsages() {
			if key := entriesText(u.GetEntries()); !seen[key] {
				seen[key] = true
				all.Usages = append(all.Usages, u)
			}
		}
		if all.NextPageToken = got.GetNextPageToken(); all.NextPageToken == "" || len(all.Usages) >= most {
			return all, nil
		}
	}
}

// WriteUsage writes a usage as text.
func WriteUsage(to io.Writer, u *adminv1.UsageServiceListResponse, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for _, one := range u.GetUsages() {
		w.Line("%s", w.Paint(terminal.Bold, terminal.Clean(entriesText(one.GetEntries()))))
		w.row("rule", "%s", terminal.Clean(one.GetRule().GetPath()))
		for _, k := range one.GetCounters() {
			w.row("limit", "%s: %s", terminal.Clean(k.GetWords()), StateOf(k).String())
		}
		w.Line("")
	}
	switch {
	case len(u.GetUsages()) == 0:
		w.Line("no counter of a rule with usage: true is in use with these entries")
	case u.GetNextPageToken() != "":
		w.Line("%s shown; there may be more: use --most", terminal.Count(len(u.GetUsages()), "descriptor"))
	default:
		w.Line("%s", terminal.Count(len(u.GetUsages()), "descriptor"))
	}
	return w.Flush()
}
