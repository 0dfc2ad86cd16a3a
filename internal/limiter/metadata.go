package limiter

import (
	"maps"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// metadata builds the dynamic metadata of an answer: the request, and the metadata of the rules that passed.
func (w *work) metadata(d *Decision) map[string]any {
	req := w.req
	descriptors := make([]any, len(req.Descriptors))
	for i := range req.Descriptors {
		descriptors[i] = describe(&req.Descriptors[i])
	}
	m := map[string]any{"domain": req.Domain, "descriptors": descriptors}
	if req.Hits != 0 {
		m["hitsAddend"] = uint64(req.Hits)
	}
	if merged := w.mergeMetadata(d); len(merged) > 0 {
		m["metadata"] = merged
	}
	if warnings := w.warnings(d); len(warnings) > 0 {
		m["warnings"] = warnings
	}
	if w.snap.settings.Explain {
		if decision := w.explain(d); decision != nil {
			m["decision"] = decision
		}
	}
	return m
}

// explain returns the part of the metadata that shows which rule decided. It is the rule that headers would describe.
// Times are in milliseconds, rounded up.
func (w *work) explain(d *Decision) map[string]any {
	i := w.tightest(d)
	if i < 0 {
		return nil
	}
	st, path := &d.Statuses[i], ofRequest
	if r := w.subjects[i].rule; r != nil && !st.FromRequest {
		path = r.Path
	}
	m := map[string]any{
		"rule":              path,
		"descriptor":        i,
		"code":              st.Code.String(),
		"requests_per_unit": st.Limit.Requests,
		"window_seconds":    windowSeconds(w.decidingLimit(i).Window.LengthAt(w.now)),
		"remaining":         st.Remaining,
	}
	if st.Limit.Name != "" {
		m["name"] = st.Limit.Name
	}
	if st.Overridden {
		m["override"] = true
	}
	if st.Penalised {
		m["penalty"] = true
	}
	if st.RetryAfter > 0 {
		m["retry_after_ms"] = Millis(st.RetryAfter)
	}
	if st.Degraded != descriptor.OnErrorDefault {
		m["degraded"] = descriptor.OnErrorNames[st.Degraded]
	}
	if st.Delay > 0 {
		m["delay_ms"] = Millis(st.Delay)
	}
	return m
}

func describe(d *Descriptor) map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = e.Key + "=" + e.Value
	}
	m := map[string]any{"entries": entries}
	if d.HasLimit {
		m["limit"] = map[string]any{
			"requests_per_unit": uint64(d.Limit.Requests),
			"unit":              strings.ToUpper(descriptor.Unit(d.Limit.Unit).String()),
		}
	}
	if d.HasHits {
		m["hitsAddend"] = d.Hits
	}
	return m
}

// mergeMetadata merges the metadata of the rules that passed, except unlimited rules. For equal keys, the first value
// wins, but two maps are merged. The rules' own maps are never changed: merging copies them.
func (w *work) mergeMetadata(d *Decision) map[string]any {
	var merged map[string]any
	for i := range d.Statuses {
		r := w.subjects[i].rule
		if r == nil || r.Unlimited || len(r.Metadata) == 0 || d.Statuses[i].Code != OK {
			continue
		}
		if merged == nil {
			merged = r.Metadata
			continue
		}
		merged = merge(merged, r.Metadata)
	}
	return merged
}

func merge(first, second map[string]any) map[string]any {
	out := maps.Clone(first)
	for k, v := range second {
		old, had := out[k]
		a, isMap := old.(map[string]any)
		b, both := v.(map[string]any)
		switch {
		case !had:
			out[k] = v
		case isMap && both:
			out[k] = merge(a, b)
		}
	}
	return out
}
