package simulate

import (
	"math"
	"slices"
	"time"
)

// answer is a model's verdict on a request.
type answer struct {
	allowed bool
	left    int64         // if the hits were added
	retry   time.Duration // if they are denied: until the same request would pass; negative: never
	unsure  bool          // rounding decides whether it is allowed
	about   bool          // left may be one less or more, and retry is not known
}

// model is the simplest form of an algorithm.
type model interface {
	judge(at time.Time, hits, limit int64) answer // changes nothing
	add(at time.Time, hits, limit int64)
}

// refunder is a model that accepts refunds. A refund never takes away more than the current window holds.
type refunder interface {
	refund(at time.Time, hits, limit int64)
}

// models are the models of the kinds whose answers are checked.
var models = map[kind]func() model{
	fixed:   func() model { return new(fixedModel) },
	first:   func() model { return &fixedModel{firstHit: true} },
	log:     func() model { return new(logModel) },
	bucket:  func() model { return new(bucketModel) },
	leaky:   func() model { return &bucketModel{more: 1} },
	sliding: func() model { return new(slidingModel) },
	punish:  func() model { return new(penaltyModel) },
	classes: func() model { return new(classModel) },
}

// fixedModel counts in windows of the clock, or in windows that start with a hit.
type fixedModel struct {
	firstHit bool
	began    time.Time
	used     int64
}

func (m *fixedModel) enter(at time.Time) {
	began := at.Truncate(window)
	if m.firstHit {
		if began = at; at.Before(m.began.Add(window)) {
			began = m.began
		}
	}
	if began.After(m.began) {
		m.began, m.used = began, 0
	}
}

func (m *fixedModel) judge(at time.Time, hits, limit int64) answer {
	then := *m
	then.enter(at)
	a := answer{allowed: then.used+hits <= limit, left: max(limit-then.used-hits, 0), retry: then.began.Add(window).Sub(at)}
	if hits > limit {
		a.retry = -1
	}
	return a
}

func (m *fixedModel) add(at time.Time, hits, _ int64) {
	m.enter(at)
	m.used += hits
}

func (m *fixedModel) refund(at time.Time, hits, _ int64) {
	if !at.Before(m.began.Add(window)) {
		return // a refund never starts a window
	}
	if hits <= m.used {
		m.used -= hits
	}
	if m.firstHit && m.used == 0 {
		m.began = time.Time{} // a counter without hits has no window: the next hit starts one
	}
}

// logModel keeps every hit for a window.
type logModel struct{ hits []logged }

type logged struct {
	at time.Time
	n  int64
}

func (m *logModel) judge(at time.Time, hits, limit int64) answer {
	// later questions may be about a slightly earlier time
	m.hits = slices.DeleteFunc(m.hits, func(h logged) bool { return h.at.Before(at.Add(-2 * window)) })
	first, used := 0, int64(0)
	for _, h := range m.hits {
		if h.at.After(at.Add(-window)) {
			used += h.n
		} else {
			first++
		}
	}
	a := answer{allowed: used+hits <= limit, left: max(limit-used-hits, 0), retry: -1}
	for i := first; i < len(m.hits) && hits <= limit && a.retry < 0; i++ {
		if used -= m.hits[i].n; used+hits <= limit {
			a.retry = m.hits[i].at.Add(window).Sub(at)
		}
	}
	return a
}

func (m *logModel) add(at time.Time, hits, _ int64) { m.hits = append(m.hits, logged{at, hits}) }

// refund drops the newest hits.
func (m *logModel) refund(at time.Time, hits, _ int64) {
	used := int64(0)
	for _, h := range m.hits {
		if h.at.After(at.Add(-window)) {
			used += h.n
		}
	}
	for i := len(m.hits) - 1; i >= 0 && hits > 0 && used >= hits; i-- {
		n := min(hits, m.hits[i].n)
		m.hits[i].n -= n
		hits -= n
		used -= n
	}
	m.hits = slices.DeleteFunc(m.hits, func(h logged) bool { return h.n == 0 })
}

// bucketModel has the hits in use, and the limit by which they drain: the limit of the last take.
type bucketModel struct {
	more  int64 // hits that it holds above the limit
	last  time.Time
	level float64 // hits
	rate  int64
}

// used returns the hits in use. If they are more than two buckets, or a second, of a lower limit, the bucket was just
// used up.
func (m *bucketModel) used(at time.Time, limit int64) float64 {
	size := float64(limit + m.more)
	level := max(m.level-float64(at.Sub(m.last))/float64(window)*float64(m.rate), 0)
	if level-size > max(size, float64(limit)/window.Seconds()) {
		return size
	}
	return level
}

func (m *bucketModel) judge(at time.Time, hits, limit int64) answer {
	used, size := m.used(at, limit), float64(limit+m.more)
	left := size - min(used, size) - float64(hits)
	a := answer{allowed: left >= 0, left: int64(max(left, 0)), retry: time.Duration((used + float64(hits) - size) / float64(limit) * float64(window))}
	if hits > limit+m.more {
		a.retry = -1
	}
	a.about = math.Abs(left-math.Round(left)) < 1e-3
	a.unsure = math.Abs(left) < 1e-3
	return a
}

func (m *bucketModel) add(at time.Time, hits, limit int64) {
	m.last, m.level, m.rate = at, min(m.used(at, limit), float64(limit+m.more))+float64(hits), limit
}

func (m *bucketModel) refund(at time.Time, hits, limit int64) {
	m.last, m.level, m.rate = at, max(m.used(at, limit)-float64(hits), 0), limit
}

// slidingModel adds a weighted part of the previous window's hits.
type slidingModel struct {
	began     time.Time
	used, was int64
}

func (m *slidingModel) enter(at time.Time) {
	switch began := at.Truncate(window); {
	case began.After(m.began.Add(window)):
		m.began, m.used, m.was = began, 0, 0
	case began.After(m.began):
		m.began, m.used, m.was = began, 0, m.used
	}
}

func (m *slidingModel) judge(at time.Time, hits, limit int64) answer {
	then := *m
	then.enter(at)
	left := float64(limit-then.used-hits) - float64(then.was)*(1-float64(at.Sub(then.began))/float64(window))
	return answer{allowed: left >= 0, left: int64(max(left, 0)), about: true, unsure: math.Abs(left) <= 1}
}

func (m *slidingModel) add(at time.Time, hits, _ int64) {
	m.enter(at)
	m.used += hits
}

// penaltyModel is a fixed window in which a denial has a penalty.
type penaltyModel struct {
	fixedModel
	until time.Time
}

func (m *penaltyModel) judge(at time.Time, hits, limit int64) answer {
	a := m.fixedModel.judge(at, hits, limit)
	wait := m.until.Sub(at)
	if a.allowed && wait > 0 {
		a.allowed, a.retry = false, 0
	}
	if !a.allowed && hits > 0 && wait <= 0 {
		wait = penalty
	}
	if a.retry >= 0 {
		a.retry = max(a.retry, wait)
	}
	return a
}

func (m *penaltyModel) add(at time.Time, hits, limit int64) {
	if at.Before(m.until) {
		return
	}
	if !m.fixedModel.judge(at, hits, limit).allowed && hits > 0 {
		m.until = at.Add(penalty)
	}
	m.fixedModel.add(at, hits, limit)
}

// classModel is a fixed window that reserves the unused part of each class's guarantee. Its time has no steps, and its
// hits are fractions.
type classModel struct {
	class int // class of the next take
	began time.Time
	mixed bool // the limit has changed in this window, so the model cannot know the reserved hits
	limit int64
	used  int64
	owed  [3]float64
}

func (m *classModel) enter(at time.Time, limit int64) {
	began := at.Truncate(window)
	due := func(i int) float64 {
		return (1 - float64(at.Sub(began))/float64(window)) * float64(guarantees[i]*limit) / 100
	}
	for i := range m.owed {
		if m.owed[i] = min(m.owed[i], due(i)); began.After(m.began) {
			m.owed[i] = due(i)
		}
	}
	if m.mixed = m.mixed || m.limit != limit; began.After(m.began) {
		m.began, m.used, m.mixed = began, 0, false
	}
	m.limit = limit
}

func (m *classModel) judge(at time.Time, hits, limit int64) answer {
	then := *m
	then.enter(at, limit)
	left := float64(limit - then.used - hits)
	for i, owed := range then.owed {
		if i != m.class {
			left -= owed
		}
	}
	return answer{allowed: left >= 0, left: int64(max(left, 0)), about: true, unsure: math.Abs(left) <= 3 || then.mixed}
}

func (m *classModel) add(at time.Time, hits, limit int64) {
	m.enter(at, limit)
	m.used += hits
	m.owed[m.class] = max(0, m.owed[m.class]-float64(hits))
}
