package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/logging"
)

// refusals logs some of the refusals.
type refusals struct {
	Decider

	some logging.Sampler
	log  *slog.Logger
	keys descriptor.KeyBuilder
}

// Decide implements Decider.
func (r *refusals) Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	err := r.Decider.Decide(ctx, now, req, d)
	r.look(ctx, now, req, d, err)
	return err
}

// Start implements Starter.
func (r *refusals) Start(ctx context.Context, now time.Time, b *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	l := lookPool.Get().(*laterLook)
	if l.then == nil {
		l.then = l.finish
	}
	l.refusals, l.ctx, l.now, l.req, l.decision, l.done = r, ctx, now, req, d, done
	decided, err = startDecision(ctx, r.Decider, now, b, req, d, l.then)
	if decided {
		l.release()
		r.look(ctx, now, req, d, err)
	}
	return decided, err
}

// laterLook is a decision that is looked at when it is made. It is reused.
type laterLook struct {
	refusals *refusals
	ctx      context.Context // that of the call
	now      time.Time
	req      *limiter.Request
	decision *limiter.Decision
	done     func(error)

	then func(error) // finish; made once
}

var lookPool = sync.Pool{New: func() any { return new(laterLook) }}

func (l *laterLook) release() {
	*l = laterLook{then: l.then}
	lookPool.Put(l)
}

// finish looks at the decision, and passes its error on.
func (l *laterLook) finish(err error) {
	done := l.done
	l.refusals.look(l.ctx, l.now, l.req, l.decision, err)
	l.release()
	done(err)
}

// look logs a decision if it is a refusal.
func (r *refusals) look(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision, err error) {
	if err == nil && d.Code == limiter.OverLimit && r.some.Pick(now) {
		r.write(ctx, req, d)
	}
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

// rule names the rule that refused a descriptor, and the counter of the limit that did.
func (r *refusals) rule(req *limiter.Request, i int, s *limiter.Status) []slog.Attr {
	if req.Descriptors[i].HasLimit && s.Rule == nil {
		return []slog.Attr{slog.String("rule", "limit of the request")}
	}
	if s.Rule == nil {
		return nil
	}
	key := r.keys.AppendKey(nil, req.Domain, s.Rule.CountedEntries(req.Descriptors[i].Entries), s.Rule, &s.Rule.Limits[s.LimitIndex])
	return []slog.Attr{slog.String("rule", s.Rule.Path), slog.String("key", validText(string(key)))}
}
