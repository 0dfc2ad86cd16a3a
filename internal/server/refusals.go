package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// refusals logs some of the denials.
type refusals struct {
	some logging.Sampler
	log  *slog.Logger
	keys descriptor.KeyBuilder
}

// LogRefusals returns a limiter.Options.Refused that logs at most this many denials per second, each with its rule, the key
// of its counter, its entries and the wait. It returns nil for 0. Entries are what callers send: they may contain personal
// data.
func LogRefusals(perSecond int, keys descriptor.KeyBuilder, log *slog.Logger) func(time.Time, *limiter.Request, *limiter.Decision) {
	if perSecond <= 0 {
		return nil
	}
	r := &refusals{some: logging.Sampler{PerSecond: int64(perSecond)}, log: log, keys: keys}
	return func(now time.Time, req *limiter.Request, d *limiter.Decision) {
		if r.some.Pick(now) {
			r.write(req, d)
		}
	}
}

func (r *refusals) write(req *limiter.Request, d *limiter.Decision) {
	for i := range d.Statuses {
		s := &d.Statuses[i]
		if s.Code != limiter.OverLimit || i >= len(req.Descriptors) {
			continue
		}
		attrs := []slog.Attr{
			slog.String("domain", logging.Shorten(req.Domain)),
			slog.String("entries", logging.Entries(req.Descriptors[i].Entries)),
			slog.Uint64("requests_per_unit", s.Limit.Requests),
			slog.String("wait", wait(s.RetryAfter)),
		}
		attrs = append(attrs, r.rule(req, i, s)...)
		if s.Overridden {
			attrs = append(attrs, slog.Bool("override", true))
		}
		if n := r.some.Missed(); n > 0 {
			attrs = append(attrs, slog.Int64("not_logged", n))
		}
		r.log.LogAttrs(context.Background(), slog.LevelInfo, "request denied", attrs...)
		return
	}
}

func wait(d time.Duration) string {
	if d < 0 {
		return "forever"
	}
	return d.String()
}

// rule names the rule that denied a descriptor, and the counter of the limit that did.
func (r *refusals) rule(req *limiter.Request, i int, s *limiter.Status) []slog.Attr {
	if s.FromRequest {
		return []slog.Attr{slog.String("rule", "limit of the request")}
	}
	if s.Rule == nil {
		return nil
	}
	key := r.keys.AppendKey(nil, req.Domain, s.Rule.CountedEntries(req.Descriptors[i].Entries), s.Rule, &s.Rule.Limits[s.LimitIndex])
	return []slog.Attr{slog.String("rule", s.Rule.Path), slog.String("key", validText(string(key)))}
}
