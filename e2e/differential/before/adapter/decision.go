package adapter

import (
	"encoding/json"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/limiter"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// decided writes down a decision. After an error it has no meaning.
func (s *Side) decided(what string, d *limiter.Decision, err error) {
	t := s.Text.Line(what)
	if err != nil {
		s.Text = t.Error("error", err)
		return
	}
	t = t.Int("code", int64(d.Code)).Time("delay", d.Delay)
	for i := range d.Statuses {
		st := &d.Statuses[i]
		t = t.Line(" status").Int("code", int64(st.Code)).Quoted("rule", pathOf(st.Rule)).Int("index", int64(st.LimitIndex)).Bool("limited", st.Limited)
		t = t.Quoted("name", st.Limit.Name).Uint("requests", st.Limit.Requests).Int("unit", int64(st.Limit.Unit))
		t = t.Bool("penalised", st.Penalised).Bool("overridden", st.Overridden).Uint("remaining", st.Remaining)
		t = t.Time("reset", st.Reset).Time("retry", st.RetryAfter).Time("delay", st.Delay).Int("degraded", int64(st.Degraded)).Time("until_reset", st.UntilReset())
	}
	for _, h := range d.Headers {
		t = t.Line(" header").Quoted(h.Key, h.Value)
	}
	for _, h := range d.Upstream {
		t = t.Line(" upstream").Quoted(h.Key, h.Value)
	}
	for _, h := range d.Holds {
		t = t.Line(" hold").Bool("some", h.Some).Int("result", int64(h.Result)).Int("reserved", h.Reserved).Int("expires", h.Expires.UnixMicro())
	}
	if len(d.Holds) > 0 {
		t = t.Line(" holds").Bool("reserved", d.Reserved()).Bool("known", d.ReservationKnown()).Int("until", d.ReservedUntil().UnixMicro())
	}
	for _, n := range d.Notices {
		t = t.Line(" notice").Int("kind", int64(n.Kind)).Int("descriptor", int64(n.Descriptor)).Int("index", int64(n.LimitIndex)).Quoted("name", n.Name).Int("percent", n.Percent)
	}
	if d.Metadata != nil {
		t = append(t.Line(" metadata "), jsonOf(d.Metadata)...)
	}
	s.Text = t
}

func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (s *Side) explain(domain string, entries []descriptor.Entry) {
	e := s.limiter.Explain(domain, entries)
	t := s.Text.Line("explain").Bool("known", e.Known).Quoted("rule", pathOf(e.Rule)).Quoted("reason", e.Reason)
	for _, key := range e.Keys {
		t = t.Quoted("key", key)
	}
	s.Text = t
}

// counters writes down what operators see of counters.
func (s *Side) counters(what string, c *limiter.Counters, err error) {
	s.Text = s.Text.Line(what)
	if err != nil {
		s.Text = s.Text.Error("error", err)
		return
	}
	t := s.Text.Quoted("rule", pathOf(c.Explanation.Rule)).Bool("from_request", c.FromRequest).Bool("blocked", c.Blocked).Uint("hit_cost", c.HitCost)
	if c.Override != nil {
		t = t.Quoted("override", c.Override.Words())
	}
	s.Text = t
	for i := range c.List {
		s.Text = s.Text.Line(" counter")
		s.counter(&c.List[i])
	}
}

func (s *Side) counter(k *limiter.Counter) {
	t := s.Text.Quoted("key", k.Key).Quoted("words", k.Words()).Bool("inactive", k.Inactive).Bool("lifted", k.Lifted).Bool("passes", k.Passes).Bool("cached", k.Cached)
	s.Text = t.Int("used", k.Used).Time("penalty", k.Penalty).Uint("remaining", k.Remaining).Time("wait", k.Wait).Time("reset", k.Reset)
	s.limit(&k.Limit)
}

func (s *Side) quotaBucket(q *limiter.QuotaBucket, err error) {
	t := s.Text.Line("quota bucket").Quoted("rule", pathOf(q.Rule)).Int("on_error", int64(q.OnError)).Bool("domain", q.Domain != nil)
	s.Text = t
	s.counters(" counters", &q.Counters, err)
	for _, k := range q.Enforced {
		s.Text = s.Text.Line(" enforced")
		s.counter(k)
	}
}
