package serviceclient

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// answerWriter writes answers for people.
type answerWriter struct{ *terminal.Writer }

// row writes a line with a heading.
func (w answerWriter) row(what, format string, args ...any) {
	w.Line("%-9s%s", what, fmt.Sprintf(format, args...))
}

func codeColor(code string) terminal.Color {
	switch code {
	case "OK":
		return terminal.Green
	case OverLimit:
		return terminal.Red
	default:
		return terminal.Yellow
	}
}

// WriteAnswer writes a decision for people.
func WriteAnswer(to io.Writer, a *Answer, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	w.Line("%s  in %s", w.Paint(codeColor(a.Code), a.Code), terminal.Span(time.Duration(a.Millis*float64(time.Millisecond))))
	for i := range a.Statuses {
		s := &a.Statuses[i]
		w.Line("")
		w.Line("%d  %s", i+1, w.Paint(terminal.Bold, terminal.Clean(entriesText(s.Entries))))
		w.Line("   %s, %s", w.Paint(codeColor(s.Code), s.Code), terminal.Clean(statusText(s)))
	}
	w.list("headers", a.Headers)
	w.list("headers for the request", a.Upstream)
	if len(a.Metadata) > 0 {
		w.Line("")
		w.Line("dynamic metadata")
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(a.Metadata); err != nil {
			return fmt.Errorf("write metadata: %w", err)
		}
		for line := range strings.Lines(b.String()) {
			w.Line("   %s", terminal.Clean(strings.TrimSuffix(line, "\n")))
		}
	}
	if a.Body != "" {
		w.Line("")
		w.Line("body")
		w.Line("   %s", terminal.Clean(a.Body))
	}
	return w.Flush()
}

func (w answerWriter) list(what string, headers []Header) {
	if len(headers) == 0 {
		return
	}
	w.Line("")
	w.Line("%s", what)
	for _, h := range headers {
		w.Line("   %s: %s", terminal.Clean(h.Name), terminal.Clean(h.Value))
	}
}

func statusText(s *Status) string {
	if s.Limit == nil {
		return "no limit applies"
	}
	limit := fmt.Sprintf("%d per %s", s.Limit.Requests, s.Limit.Unit)
	if s.Limit.UnitMultiplier > 1 {
		limit = fmt.Sprintf("%d per %d %ss", s.Limit.Requests, s.Limit.UnitMultiplier, s.Limit.Unit)
	}
	if s.Limit.Unit == "unknown" { // the protocol has no unit for the window, and none for requests in flight
		limit = fmt.Sprintf("limit %d", s.Limit.Requests)
	}
	if s.Limit.Name != "" {
		limit += " (" + s.Limit.Name + ")"
	}
	limit += fmt.Sprintf(", %d left", s.Remaining)
	if s.Reset != nil {
		limit += ", reset in " + terminal.Span(time.Duration(*s.Reset*float64(time.Second)))
	}
	return limit
}

func entriesText(entries []Entry) string {
	pieces := make([]string, len(entries))
	for i, e := range entries {
		pieces[i] = e.Key + "=" + e.Value
	}
	return strings.Join(pieces, ", ")
}

// WriteSummary writes the result of many requests for people.
func WriteSummary(to io.Writer, s *Summary, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	w.row("sent", "%d in %s, %.1f answers a second", s.Sent, terminal.Span(time.Duration(s.Seconds*float64(time.Second))), s.Rate)
	w.row("ok", "%s", w.Paint(terminal.Green, share(s.OK, s.Sent)))
	w.row("over", "%s", w.Paint(terminal.Red, share(s.OverLimit, s.Sent)))
	w.row("errors", "%s", w.Paint(terminal.Yellow, share(s.Failed, s.Sent)))
	for _, code := range slices.Sorted(maps.Keys(s.Errors)) {
		w.row("", "%d %s: %s", s.Errors[code], code, terminal.Clean(s.Messages[code]))
	}
	if s.Sent > 0 {
		w.row("latency", "p50 %s, p90 %s, p99 %s, max %s", millis(s.P50), millis(s.P90), millis(s.P99), millis(s.Max))
	}
	return w.Flush()
}

func share(n, of int64) string {
	if of == 0 || n == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d (%.1f%%)", n, 100*float64(n)/float64(of))
}

func millis(ms float64) string { return terminal.Span(time.Duration(ms * float64(time.Millisecond))) }

// WriteCounters writes the counters of descriptors for people.
func WriteCounters(to io.Writer, all []*Counters, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for i, c := range all {
		if i > 0 {
			w.Line("")
		}
		w.counters(c)
	}
	return w.Flush()
}

func (w answerWriter) counters(c *Counters) {
	w.Line("%s  %s", w.Paint(terminal.Bold, terminal.Clean(c.Domain)), terminal.Clean(entriesText(c.Entries)))
	switch {
	case c.FromRequest:
		w.row("rule", "none: the request carries its own limit")
	case c.Rule == nil:
		w.row("no rule", "%s", w.Paint(terminal.Yellow, terminal.Clean(c.Reason)))
		return
	default:
		name := terminal.Clean(c.Rule.Path)
		if c.Rule.Name != "" {
			name += " (" + terminal.Clean(c.Rule.Name) + ")"
		}
		if c.Rule.Shadow {
			name += ", in shadow mode"
		}
		w.row("rule", "%s", name)
		if c.Rule.File != "" {
			w.row("", "%s:%d:%d", terminal.Clean(c.Rule.File), c.Rule.Line, c.Rule.Column)
		}
	}
	if c.Override != "" {
		w.row("override", "%s", w.Paint(terminal.Yellow, terminal.Clean(c.Override)))
	}
	if len(c.Counters) == 0 {
		w.row("limit", "unlimited: nothing is counted")
	}
	for i := range c.Counters {
		k := &c.Counters[i]
		words := terminal.Clean(k.Words)
		if k.Name != "" && (c.Rule == nil || k.Name != c.Rule.Name) {
			words += " (" + terminal.Clean(k.Name) + ")"
		}
		w.row("limit", "%s", w.Paint(terminal.Bold, words))
		w.row("key", "%s", terminal.Clean(k.Key))
		if c.Cleared {
			w.row("cleared", "%s", w.Paint(terminal.Green, fmt.Sprintf("%d of %d had been used", k.State.Used, k.State.Capacity)))
			continue
		}
		color := terminal.Green
		if k.State.Remaining == 0 {
			color = terminal.Red
		}
		w.row("state", "%s", w.Paint(color, k.State.String()))
	}
}
