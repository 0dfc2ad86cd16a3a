package limiter

import (
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A limit with a penalty has two takes: one of the penalty, which guards the other. Only the other one is in calculation.index. What the
// penalty refuses is passed on to it, so that all that follows sees one outcome for each limit.

// guard adds the take of the penalty that goes before a take of a limit. Refunds, and hits that have passed, are never refused.
func (c *calculation) guard(t *backend.Take) {
	r := &c.resolved[t.Member]
	if t.Hits < 0 || c.req.Purpose == Charge || r.own.blocked || r.settlesEarlier() {
		return
	}
	shadow := c.settings.Shadow || r.shadow() || r.passes(len(c.index))
	start := len(c.keys)
	c.keys = descriptor.AppendPenaltyKey(c.keys, t.Key, shadow)
	c.request.Takes = append(c.request.Takes, backend.Take{
		Key: c.keys[start:len(c.keys):len(c.keys)], Limit: t.Limit.Penalty, Rule: t.Rule, Member: t.Member, Vote: t.Vote, Guards: true,
	})
	c.guarded = true
}

// penalise passes on what penalties refuse. It is called only if a limit has one.
func (c *calculation) penalise() {
	for i := range c.request.Takes {
		if !c.request.Takes[i].Guards {
			continue
		}
		penalty, o := &c.request.Outcomes[i], &c.request.Outcomes[i+1]
		if penalty.Allowed || penalty.Failed || o.Failed {
			continue
		}
		o.Allowed, o.Delay, o.Penalty = false, 0, penalty.RetryAfter
		if longer(penalty.RetryAfter, o.RetryAfter) {
			o.RetryAfter = penalty.RetryAfter
		}
	}
}

// countPenalties counts the penalties that have begun.
func (l *Limiter) countPenalties(c *calculation) {
	for i := range c.request.Takes {
		t, o := &c.request.Takes[i], &c.request.Outcomes[i]
		if t.Guards && !o.Failed && o.Used > o.Before {
			l.seriesOf(c, c.snapshot.series, t.Member).Penalties.Add(1)
		}
	}
}

// penaltyTakes returns takes that read the penalties of the counters, each with the index of its counter as its member.
func (c *Counters) penaltyTakes(settings *Settings, rule *descriptor.Rule) (takes []backend.Take) {
	for i := range c.List {
		k := &c.List[i]
		if k.Limit.Penalty == nil {
			continue
		}
		shadow := settings.Shadow || rule.Shadow || k.Passes
		takes = append(takes, backend.Take{
			Key: descriptor.AppendPenaltyKey(nil, []byte(k.Key), shadow), Limit: k.Limit.Penalty, Rule: rule, Member: i,
		})
	}
	return takes
}

// readPenalties fills in the penalties in force, from the outcomes of the takes after those of the counters.
func (c *Counters) readPenalties(r *backend.Request) {
	for i := len(c.List); i < len(r.Takes); i++ {
		o, k := &r.Outcomes[i], &c.List[r.Takes[i].Member]
		if o.Allowed || k.Inactive {
			continue
		}
		k.Penalty, k.Remaining, k.Reset = o.RetryAfter, 0, max(k.Reset, o.RetryAfter)
		if longer(o.RetryAfter, k.Wait) {
			k.Wait = o.RetryAfter
		}
	}
}
