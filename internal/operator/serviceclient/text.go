package serviceclient

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// answerWriter writes answers for people.
type answerWriter struct{ *terminal.Writer }

// row writes a line with a heading.
func (w answerWriter) row(what, format string, args ...any) {
	w.Line("%-9s%s", what, fmt.Sprintf(format, args...))
}

func codeColor(code ratelimitv3.RateLimitResponse_Code) terminal.Color {
	switch code {
	case ratelimitv3.RateLimitResponse_OK:
		return terminal.Green
	case OverLimit:
		return terminal.Red
	default:
		return terminal.Yellow
	}
}

// WriteAnswer writes the answer to a request for people.
func WriteAnswer(to io.Writer, r *Request, a *ratelimitv3.RateLimitResponse, took time.Duration, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	w.Line("%s  in %s", w.Paint(codeColor(a.GetOverallCode()), a.GetOverallCode().String()), terminal.Span(took))
	for i, s := range a.GetStatuses() {
		var of []descriptor.Entry
		if i < len(r.Descriptors) {
			of = r.Descriptors[i]
		}
		w.Line("")
		w.Line("%d  %s", i+1, w.Paint(terminal.Bold, terminal.Clean(entriesText(Entries(of)))))
		w.Line("   %s, %s", w.Paint(codeColor(s.GetCode()), s.GetCode().String()), terminal.Clean(statusText(s)))
	}
	w.list("headers", a.GetResponseHeadersToAdd())
	w.list("headers for the request", a.GetRequestHeadersToAdd())
	if m := a.GetDynamicMetadata(); len(m.GetFields()) > 0 {
		w.Line("")
		w.Line("dynamic metadata")
		var b strings.Builder
		if err := WriteJSON(&b, m.AsMap()); err != nil {
			return fmt.Errorf("write metadata: %w", err)
		}
		for line := range strings.Lines(b.String()) {
			w.Line("   %s", terminal.Clean(strings.TrimSuffix(line, "\n")))
		}
	}
	if len(a.GetRawBody()) > 0 {
		w.Line("")
		w.Line("body")
		w.Line("   %s", terminal.Clean(string(a.GetRawBody())))
	}
	return w.Flush()
}

func (w answerWriter) list(what string, headers []*commonv3.HeaderValue) {
	if len(headers) == 0 {
		return
	}
	w.Line("")
	w.Line("%s", what)
	for _, h := range headers {
		w.Line("   %s: %s", terminal.Clean(h.GetKey()), terminal.Clean(cmp.Or(h.GetValue(), string(h.GetRawValue()))))
	}
}

func statusText(s *ratelimitv3.RateLimitResponse_DescriptorStatus) string {
	l := s.GetCurrentLimit()
	if l == nil {
		return "no limit applies"
	}
	unit := unitName(int32(l.GetUnit()))
	limit := fmt.Sprintf("%d per %s", l.GetRequestsPerUnit(), unit)
	if n := l.GetUnitMultiplier().GetValue(); n > 1 {
		limit = fmt.Sprintf("%d per %d %ss", l.GetRequestsPerUnit(), n, unit)
	}
	// the protocol has no unit for the window, and none for requests in flight
	if unit == descriptor.UnitUnknown.String() {
		limit = fmt.Sprintf("limit %d", l.GetRequestsPerUnit())
	}
	if l.GetName() != "" {
		limit += " (" + l.GetName() + ")"
	}
	limit += fmt.Sprintf(", %d left", s.GetLimitRemaining())
	if d := s.GetDurationUntilReset(); d != nil {
		limit += ", reset in " + terminal.Span(d.AsDuration())
	}
	return limit
}

func entriesText(entries []*adminv1.Entry) string {
	pieces := make([]string, len(entries))
	for i, e := range entries {
		pieces[i] = e.GetKey() + "=" + e.GetValue()
	}
	return strings.Join(pieces, ", ")
}

// WriteSummary writes the result of many requests for people.
func WriteSummary(to io.Writer, s *Summary, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	w.row("sent", "%d in %s, %.1f answers a second", s.Sent, terminal.Span(time.Duration(s.Seconds*float64(time.Second))),
		s.Rate)
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

// WriteCounters writes the answers about descriptors of a domain for people.
func WriteCounters[C Counters](to io.Writer, domain string, of [][]descriptor.Entry, all []C, color bool) error {
	w := answerWriter{terminal.NewWriter(to, color)}
	for i, c := range all {
		if i > 0 {
			w.Line("")
		}
		w.Line("%s  %s", w.Paint(terminal.Bold, terminal.Clean(domain)), terminal.Clean(entriesText(Entries(of[i]))))
		w.counters(c)
	}
	return w.Flush()
}

func (w answerWriter) counters(c Counters) {
	rule := c.GetRule()
	switch {
	case rule != nil:
		name := terminal.Clean(rule.GetPath())
		if rule.GetName() != "" {
			name += " (" + terminal.Clean(rule.GetName()) + ")"
		}
		if rule.GetShadowMode() {
			name += ", in shadow mode"
		}
		w.row("rule", "%s", name)
		if at := rule.GetPosition(); at.GetFile() != "" {
			w.row("", "%s:%d:%d", terminal.Clean(at.GetFile()), at.GetLine(), at.GetColumn())
		}
	case len(c.GetCounters()) > 0:
		w.row("rule", "none: the request carries its own limit")
	default:
		w.row("no rule", "%s", w.Paint(terminal.Yellow, terminal.Clean(c.GetReason())))
		return
	}
	if p, ok := c.(*adminv1.PeekResponse); ok && p.GetOverride() != "" {
		w.row("override", "%s", w.Paint(terminal.Yellow, terminal.Clean(p.GetOverride())))
	}
	if len(c.GetCounters()) == 0 {
		w.row("limit", "unlimited: nothing is counted")
	}
	_, cleared := c.(*adminv1.ResetResponse)
	for _, k := range c.GetCounters() {
		words, name := terminal.Clean(k.GetWords()), k.GetLimit().GetName()
		if name != "" && name != rule.GetName() {
			words += " (" + terminal.Clean(name) + ")"
		}
		w.row("limit", "%s", w.Paint(terminal.Bold, words))
		w.row("key", "%s", terminal.Clean(string(k.GetLimit().GetCounterKey())))
		if cleared {
			w.row("cleared", "%s", w.Paint(terminal.Green, fmt.Sprintf("%d of %d had been used", k.GetUsed(), k.GetCapacity())))
			continue
		}
		color := terminal.Green
		if k.GetRemaining() == 0 {
			color = terminal.Red
		}
		w.row("state", "%s", w.Paint(color, StateOf(k).String()))
	}
}
