package simulate

import (
	"hash/crc32"
	"maps"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// comparison compares the decisions of all algorithms with those of an exact log. Each limit is compared by itself: it gets every
// request that reaches it, whatever other limits decide.
//
// Memory is bounded. At the bound the comparison goes on with a sample: half of the counters, chosen by a hash of their keys, so
// that neither early callers nor busy ones are preferred. Halving goes on until the rest fits.
type comparison struct {
	counters map[string]*comparedCounter
	limits   map[limitPlace]*comparedLimit
	order    []*comparedLimit // the same, first reached first

	most  int  // bytes
	bytes int  // of counters, about
	next  int  // bytes at which expired counters are dropped
	level uint // counters whose hash ends with so many zero bits are compared

	left int64 // decisions that are not compared
}

// limitPlace is a limit in the rules.
type limitPlace struct {
	rule  *descriptor.Rule
	limit int
}

const (
	maxComparison = 256 << 20 // bytes
	leastSweep    = 32 << 20  // bytes
)

func newComparison(most int) *comparison {
	return &comparison{counters: make(map[string]*comparedCounter), limits: make(map[limitPlace]*comparedLimit), most: most, next: min(most, leastSweep)}
}

// add compares the decisions about the takes of a request.
func (c *comparison) add(now time.Time, takes []backend.Take) {
	for i := range takes {
		if t := &takes[i]; hasExactLog(t) {
			c.take(now.UnixMicro(), t)
		}
	}
}

// hasExactLog reports whether an exact log can decide a take: one of hits per window, which count at once. The number of
// hits of a limit with a scale may differ from one request to the next. A penalty refuses hits that the log admits.
func hasExactLog(t *backend.Take) bool {
	return t.Hits > 0 && t.Hold == nil && t.Limit.Algorithm != descriptor.Concurrency && t.Limit.Requests > 0 && t.Limit.Penalty == nil && !t.Guards && t.Rule != nil && len(t.Rule.Limits) > 0 && t.Rule.Scales() == nil
}

func (c *comparison) take(now int64, t *backend.Take) {
	k := c.counter(t)
	if k == nil || k.log == nil {
		c.left++
		return
	}
	before := k.bytes()
	k.take(now, t.Hits, t.CountDenied)
	c.bytes += k.bytes() - before
	if k.bytes() > c.most/4 {
		c.bytes -= k.bytes()
		k.drop()
		c.bytes += k.bytes()
	}
	if c.bytes > c.next {
		c.shrink(now)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// counter returns the counter of a take, or nil if it is not in the sample.
func (c *comparison) counter(t *backend.Take) *comparedCounter {
	if !c.sampled(crc32.Checksum(t.Key, castagnoli)) {
		return nil
	}
	if k := c.counters[string(t.Key)]; k != nil {
		return k
	}
	if c.bytes > c.most { // keys may be chosen so that no sample leaves any of them out
		return nil
	}
	place, own := placeOf(t)
	l := c.limits[place]
	if l == nil {
		l = newComparedLimit(place)
		c.limits[place] = l
		c.order = append(c.order, l)
	}
	with := l.plain
	if own { // an override has other numbers
		with = newAlternatives(t.Limit)
	}
	k := newComparedCounter(l, with, string(t.Key))
	c.counters[k.key] = k
	c.bytes += k.bytes()
	return k
}

// placeOf finds the limit of a take in the rules. With an override the take has a copy of the limit, with other numbers.
func placeOf(t *backend.Take) (place limitPlace, overridden bool) {
	for i := range t.Rule.Limits {
		if &t.Rule.Limits[i] == t.Limit {
			return limitPlace{t.Rule, i}, false
		}
	}
	for i := range t.Rule.Limits {
		if t.Rule.Limits[i].Name == t.Limit.Name {
			return limitPlace{t.Rule, i}, true
		}
	}
	return limitPlace{t.Rule, 0}, true
}

func (c *comparison) sampled(hash uint32) bool { return hash&(1<<c.level-1) == 0 }

// shrink drops the counters that have expired, and if that is not enough, those that are no longer in the sample.
func (c *comparison) shrink(now int64) {
	c.keep(func(k *comparedCounter) bool { return !k.expired(now) })
	for c.bytes > c.most*3/4 && c.level < 32 {
		c.level++
		c.keep(func(k *comparedCounter) bool { return c.sampled(k.hash) })
	}
	c.next = min(c.most, max(leastSweep, 2*c.bytes))
}

func (c *comparison) keep(stays func(*comparedCounter) bool) {
	maps.DeleteFunc(c.counters, func(_ string, k *comparedCounter) bool {
		if stays(k) {
			return false
		}
		c.bytes -= k.bytes()
		return true
	})
}
