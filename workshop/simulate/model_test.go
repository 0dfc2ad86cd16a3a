package simulate

import (
	"math"
	"time"
)

// answer is what a model answers.
type answer struct {
	allowed bool
	left    int64         // if it is allowed
	retry   time.Duration // if it is not: until the same request would pass; negative: never
	close   bool          // rounding decides
}

// model is the plainest form of an algorithm.
type model interface {
	// take adds hits. A replica that answers without the store adds none.
	take(at time.Time, hits, limit int64, counts bool) answer
}

// fixedModel counts refused hits too.
type fixedModel struct {
	began time.Time
	used  int64
}

func (m *fixedModel) take(at time.Time, hits, limit int64, counts bool) answer {
	if began := at.Truncate(window); began.After(m.began) {
		m.began, m.used = began, 0
	}
	a := answer{allowed: m.used+hits <= limit, retry: m.began.Add(window).Sub(at)}
	if counts {
		m.used += hits
	}
	if hits > limit {
		a.retry = -1
	}
	a.left = max(limit-m.used, 0)
	return a
}

// logModel keeps every hit for a window.
type logModel struct {
	hits []struct {
		at time.Time
		n  int64
	}
}

func (m *logModel) take(at time.Time, hits, limit int64, counts bool) answer {
	used := int64(0)
	for _, h := range m.hits {
		if h.at.After(at.Add(-window)) {
			used += h.n
		}
	}
	a := answer{allowed: used+hits <= limit, left: limit - used - hits, retry: -1}
	if hits > limit {
		return a
	}
	for i, left := 0, used; i < len(m.hits) && !a.allowed; i++ {
		h := m.hits[i]
		if !h.at.After(at.Add(-window)) {
			continue
		}
		if left -= h.n; left+hits <= limit {
			a.retry = h.at.Add(window).Sub(at)
			break
		}
	}
	if a.allowed && counts && hits > 0 {
		m.hits = append(m.hits, struct {
			at time.Time
			n  int64
		}{at, hits})
	}
	a.left = max(a.left, 0)
	return a
}

// bucketModel knows when the bucket would be full.
type bucketModel struct {
	last  time.Time
	level float64 // windows until it is full
}

func (m *bucketModel) take(at time.Time, hits, limit int64, counts bool) answer {
	level := max(m.level-float64(at.Sub(m.last))/float64(window), 0)
	after := level + float64(hits)/float64(limit)
	a := answer{allowed: after <= 1+1e-9}
	left := (1 - after) * float64(limit)
	a.close = math.Abs(left-math.Round(left)) < 1e-3
	a.left = int64(max(left, 0))
	switch {
	case hits > limit:
		a.retry = -1
	case !a.allowed:
		a.retry = time.Duration((after - 1) * float64(window))
	case counts:
		m.last, m.level = at, after
	}
	return a
}
