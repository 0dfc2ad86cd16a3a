package limiter

import (
	"time"
)

// recordUsage records the counters of rules with usage. Entries are recorded with grouped values. A counter that the
// denial cache answered for was recorded before.
func (w *work) recordUsage(*Decision) {
	if w.domain == nil || !w.domain.Usage {
		return
	}
	for i := range w.request.Takes {
		t, o := &w.request.Takes[i], &w.request.Outcomes[i]
		s := &w.subjects[t.Member]
		if t.Hits <= 0 || o.Failed || !w.counts(t) || t.Rule == nil || !t.Rule.Usage || o.Cached || o.Used == 0 {
			continue
		}
		moves := time.Duration(0) // a window ends when it ends; other counters end later with each use
		if !t.Limit.WindowEnds() {
			moves = t.Limit.Window.Length()
		}
		w.Usage.Record(w.now, t.Key, w.req.Domain, s.counted, o.ResetAfter, moves)
	}
}
