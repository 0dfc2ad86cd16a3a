package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/logging"
)

// refusals logs some of the refusals.
type refusals struct {
	Decider

	some    logging.Sampler
	log     *slog.Logger
	explain func(domain string, entries []descriptor.Entry) descriptor.Explanation // names the rule; may be nil
}

// Decide implements Decider.
func (r *refusals) Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	err := r.Decider.Decide(ctx, now, req, d)
	if err != nil || d.Code != limiter.OverLimit {
		return err
	}
	if r.some.Pick(now) {
		r.write(ctx, req, d)
	}
	return nil
}

func (r *refusals) write(ctx context.Context, req *limiter.Request, d *limiter.Decision) {
	for i := range d.Statuses {
		s := &d.Statuses[i]
		if s.Code != limiter.OverLimit || i >= len(req.Descriptors) {
			continue
		}
		attrs := []slog.Attr{
			slog.String("domain", logging.Shorten(req.Domain)),
			slog.String("entries", logging.Entries(req.Descriptors[i].Entries)),
			slog.Uint64("requests_per_unit", uint64(s.Limit.Requests)),
			slog.String("wait", wait(s.RetryAfter)),
		}
		attrs = append(attrs, r.rule(req, i, &s.Limit)...)
		if n := r.some.Missed(); n > 0 {
			attrs = append(attrs, slog.Int64("not_logged", n))
		}
		r.log.LogAttrs(ctx, slog.LevelInfo, "refused", attrs...)
		return
	}
}

func wait(d time.Duration) string {
	if d < 0 {
		return "forever"
	}
	return d.String()
}

// rule names the rule that a descriptor matches, and the counter of the limit that refused. It looks both up again, because
// a decision does not carry them; rules that were loaded in between may be the ones that it finds.
func (r *refusals) rule(req *limiter.Request, i int, limit *limiter.CurrentLimit) []slog.Attr {
	asked := &req.Descriptors[i]
	if asked.HasOverride {
		return []slog.Attr{slog.String("rule", "override of the request")}
	}
	if r.explain == nil {
		return nil
	}
	x := r.explain(req.Domain, asked.Entries)
	if x.Rule == nil {
		return nil
	}
	attrs := []slog.Attr{slog.String("rule", x.Rule.Path)}
	for j := range x.Rule.Limits {
		l := &x.Rule.Limits[j]
		if l.Name == limit.Name && l.Requests == limit.Requests && l.Window.WholeUnit() == limit.Unit && j < len(x.Keys) {
			return append(attrs, slog.String("key", validText(x.Keys[j])))
		}
	}
	return attrs
}
