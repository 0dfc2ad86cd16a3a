package rulecheck

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// penalty finds penalties that have hardly any effect, and penalties that deny customers who did not exceed a limit.
func (c *checker) penalty(n *node, l *limit) {
	if l.Penalty == nil {
		return
	}
	if oneCounter(n.rule) {
		c.add(Warning, l.position("penalty"), codeSharedCounter,
			"give each customer a counter, with a level such as `key: remote_address`, or remove `penalty`",
			"`penalty` on a counter that all customers share: if one of them exceeds the limit, all are denied for %s",
			l.PenaltyText())
	}
	if length, text := denies(l.Limit); l.Penalty.Window.Length() <= length {
		c.add(Warning, l.position("penalty"), codePenaltyShort, "write a longer `penalty`, or remove it",
			"`penalty` of %s has hardly any effect, because the limit itself denies for up to %s", l.PenaltyText(), text)
	}
}

// denies returns for how long at most a limit denies one hit, if all that it allows has been used.
func denies(l *descriptor.Limit) (length time.Duration, text string) {
	bucket := l.Algorithm == descriptor.TokenBucket && !l.Interval || l.Algorithm == descriptor.LeakyBucket
	if bucket && l.Requests > 0 {
		length = l.Window.Length() / time.Duration(l.Requests)
		return length, length.String()
	}
	return l.Window.Length(), l.TTL()
}
