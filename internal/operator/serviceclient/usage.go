package serviceclient

import (
	"context"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Usage has the counters in use that have some entries.
type Usage struct {
	Server string  `json:"server"`
	Domain string  `json:"domain"`
	Where  []Entry `json:"where"`

	Usages []*Counters `json:"usages"`
	More   bool        `json:"more"` // there may be more
}

// usageOf makes a usage look like the answer to a peek.
type usageOf struct{ *adminv1.Usage }

func (usageOf) GetReason() string { return "" }

// Usage lists the counters in use of descriptors that have the entries where. It reads pages until it has as many descriptors as
// most says, or a few more, or there are no others.
func (c *Client) Usage(ctx context.Context, domain string, where []descriptor.Entry, most int) (*Usage, error) {
	out := &Usage{Server: c.o.Server, Domain: domain, Where: entriesOf(where), Usages: []*Counters{}}
	seen := make(map[string]bool) // a descriptor may be on several pages
	for token := ""; ; {
		got, err := c.usagePage(ctx, &adminv1.UsageServiceListRequest{Domain: domain, Where: messages(where), PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, u := range got.GetUsages() {
			var entries []descriptor.Entry
			for _, e := range u.GetEntries() {
				entries = append(entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
			}
			found := c.counters(domain, entries, usageOf{u}, false)
			if key := entriesText(found.Entries); !seen[key] {
				seen[key] = true
				out.Usages = append(out.Usages, found)
			}
		}
		token = got.GetNextPageToken()
		if out.More = token != ""; !out.More || len(out.Usages) >= most {
			return out, nil
		}
	}
}

func (c *Client) usagePage(ctx context.Context, req *adminv1.UsageServiceListRequest) (*adminv1.UsageServiceListResponse, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewUsageServiceClient(c.conn).List(ctx, req)
	if err != nil {
		return nil, c.failure(err)
	}
	return got, nil
}

// WriteUsage writes a usage as text.
func WriteUsage(to io.Writer, u *Usage, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for _, c := range u.Usages {
		w.Line("%s", w.Paint(terminal.Bold, terminal.Clean(entriesText(c.Entries))))
		w.row("rule", "%s", terminal.Clean(c.Rule.Path))
		for i := range c.Counters {
			w.row("limit", "%s: %s", terminal.Clean(c.Counters[i].Words), c.Counters[i].State.String())
		}
		w.Line("")
	}
	switch {
	case len(u.Usages) == 0:
		w.Line("no counter of a rule with usage: true is in use with these entries")
	case u.More:
		w.Line("%s shown; there may be more: use --most", terminal.Count(len(u.Usages), "descriptor"))
	default:
		w.Line("%s", terminal.Count(len(u.Usages), "descriptor"))
	}
	return w.Flush()
}
