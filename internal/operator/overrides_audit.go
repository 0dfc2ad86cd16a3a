package operator

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// author is who a change is made by, in records.
func (o *actor) author() string {
	name := cmp.Or(o.token, o.certificate, o.from)
	return validText(name[:min(len(name), override.MaxText)])
}

// audit logs each change.
func (o *overrides) audit(ctx context.Context, who *actor, edits []override.Edit, before []*override.Override,
	written []override.Override, err error) {
	for i := range edits {
		e := &edits[i]
		attrs := append(who.attrs(), e.Attrs()...)
		after := "none"
		if !e.Remove {
			after = e.Words()
		}
		was := "none"
		if before[i] != nil {
			was = before[i].Words()
		}
		attrs = append(attrs, slog.String("before", was), slog.String("after", after))
		if e.Reason != "" {
			attrs = append(attrs, slog.String("reason", logging.Shorten(e.Reason)))
		}
		result := "done"
		switch {
		case err != nil:
			result = "failed"
			attrs = append(attrs, slog.String("error", err.Error()))
		case e.Remove && before[i] == nil:
			result = "nothing to remove"
		case i < len(written):
			attrs = append(attrs, slog.Int64("version", written[i].Version))
		}
		o.log.LogAttrs(ctx, slog.LevelWarn, "change of an override", append(attrs, slog.String("result", result))...)
	}
}
