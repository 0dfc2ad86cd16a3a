package caller

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// History is the last hour of the counters of one descriptor.
type History struct {
	Server   string           `json:"server"`
	Domain   string           `json:"domain"`
	Entries  []Entry          `json:"entries"`
	Rule     *Rule            `json:"rule,omitempty"`
	Reason   string           `json:"reason,omitempty"` // why there is no history
	Counters []CounterHistory `json:"counters"`
}

// CounterHistory is the last hour of one counter, the oldest minute first.
type CounterHistory struct {
	Name    string          `json:"name,omitempty"`
	Words   string          `json:"words"`
	Key     string          `json:"key"`
	Minutes []CounterMinute `json:"minutes"`
}

// CounterMinute is what a counter did in one minute. An error is how much too high an estimate may be, in 98 of 100 cases.
type CounterMinute struct {
	At           time.Time `json:"at"`
	Allowed      uint64    `json:"allowed"`
	Refused      uint64    `json:"refused"`
	AllowedError uint64    `json:"allowed_error"`
	RefusedError uint64    `json:"refused_error"`
}

// History returns the last hour of the counters of a descriptor.
func (c *Client) History(ctx context.Context, domain string, entries []descriptor.Entry) (*History, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewUsageServiceClient(c.conn).History(ctx, &adminv1.UsageServiceHistoryRequest{Domain: domain, Entries: messages(entries)})
	if err != nil {
		return nil, c.failure(err)
	}
	out := &History{Server: c.o.Server, Domain: domain, Entries: entriesOf(entries), Rule: ruleOf(got.GetRule()), Reason: got.GetReason(), Counters: []CounterHistory{}}
	for _, k := range got.GetCounters() {
		h := CounterHistory{Name: k.GetLimit().GetName(), Words: k.GetWords(), Key: string(k.GetLimit().GetCounterKey()), Minutes: []CounterMinute{}}
		for _, m := range k.GetMinutes() {
			h.Minutes = append(h.Minutes, CounterMinute{
				At: m.GetAt().AsTime(), Allowed: m.GetAllowed(), Refused: m.GetRefused(), AllowedError: m.GetAllowedError(), RefusedError: m.GetRefusedError(),
			})
		}
		out.Counters = append(out.Counters, h)
	}
	return out, nil
}

// WriteHistory writes a history as text.
func WriteHistory(to io.Writer, h *History, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	w.Line("%s  %s", w.Paint(terminal.Bold, terminal.Clean(h.Domain)), terminal.Clean(entriesText(h.Entries)))
	if h.Rule != nil {
		w.row("rule", "%s", terminal.Clean(h.Rule.Path))
	}
	if h.Reason != "" {
		w.row("none", "%s", w.Paint(terminal.Yellow, terminal.Clean(h.Reason)))
	}
	for i := range h.Counters {
		k := &h.Counters[i]
		allowed, refused, wrong := make([]uint64, len(k.Minutes)), make([]uint64, len(k.Minutes)), uint64(0)
		for j, m := range k.Minutes {
			allowed[j], refused[j], wrong = m.Allowed, m.Refused, max(wrong, m.AllowedError, m.RefusedError)
		}
		w.row("limit", "%s", w.Paint(terminal.Bold, terminal.Clean(k.Words)))
		w.row("allowed", "%s", w.Paint(terminal.Green, hourText(k.Minutes, allowed)))
		w.row("refused", "%s", w.Paint(terminal.Red, hourText(k.Minutes, refused)))
		if wrong > 0 {
			w.row("estimate", "each minute may show up to %d hits too many", wrong)
		}
	}
	return w.Flush()
}

// hourText draws hits, one character for each minute, and says their sum and their maximum.
func hourText(minutes []CounterMinute, hits []uint64) string {
	levels := []rune("·▁▂▃▄▅▆▇█") // the first one is for none
	sum, most := uint64(0), 0
	for i, n := range hits {
		sum += n
		if n > hits[most] {
			most = i
		}
	}
	if sum == 0 {
		return "none in the last hour"
	}
	var b strings.Builder
	for _, n := range hits {
		top := uint64(len(levels) - 1)
		b.WriteRune(levels[(n*top+hits[most]-1)/hits[most]])
	}
	return fmt.Sprintf("%s  %d in the last hour, at most %d in a minute (%s UTC)", b.String(), sum, hits[most], minutes[most].At.UTC().Format("15:04"))
}
