package limiter

import (
	"strconv"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// A limit with `classes` is shared: each class is guaranteed a part. The class of a descriptor is a part of its copy of
// the limit. All classes use one counter, because the level that names the class is a condition. A request whose
// descriptors are several classes of one counter, and are one atomic step, counts as the first of these classes:
// joining.go.

// classify gives the limits of a descriptor its class.
func (w *work) classify(s *subject) {
	cs := w.ruleCharges(s)
	for i := range cs {
		if c := s.rule.ClassesOf(cs[i].index); c != nil {
			w.copyLimit(&cs[i]).Classes.Class = c.Class(s.sent)
		}
	}
}

// classSeries counts the hits of one class under a limit.
type classSeries struct {
	Domain, Rule, Limit, Class string

	Admitted, Denied atomic.Uint64
}

// ofClasses returns the series of a rule's classes, by limit and class. The first one is of the values without a class.
func (m *metrics) ofClasses(r *descriptor.Rule) [][]*classSeries {
	all := make([][]*classSeries, len(r.Limits))
	for i := range r.Limits {
		c := r.ClassesOf(i)
		if c == nil {
			continue
		}
		of := make([]*classSeries, len(c.Of)+1)
		for class := range of {
			s := classSeries{Domain: r.Domain, Rule: belowDomain(r), Limit: r.Limits[i].Name, Class: c.Name(uint8(class))}
			id := strconv.Itoa(len(r.Path)) + ":" + r.Path + strconv.Itoa(len(s.Limit)) + ":" + s.Limit + s.Class
			if of[class] = m.classes.Add(id, 1, func(string) *classSeries { return &s }); of[class] == nil {
				of[class] = m.classes.Other
			}
		}
		all[i] = of
	}
	return all
}

// countClasses counts the hits of a descriptor under its classes.
func (w *work) countClasses(s *subject) {
	all := w.snap.classes[s.rule.Index]
	for _, c := range w.taken(s) {
		if c.brought() {
			continue
		}
		of, o := all[c.index], w.outcome(c)
		if of == nil || o.Failed || c.limit.Algorithm != descriptor.SharedWindow {
			continue
		}
		series := of[c.limit.Classes.Class]
		if o.Allowed {
			add(&series.Admitted, uint64(s.admitted))
		} else {
			add(&series.Denied, uint64(deniedHits(s.admitted, int64(c.capacity()))))
		}
	}
}

func (m *metrics) classFamily() metric.Family {
	return metric.Family{
		Name:   "ratelimitd_class_hits_total",
		Help:   "Hits of each class; *: values without a class.",
		Labels: []string{"domain", "rule", "limit", "class", "result"},
		Counts: func(emit metric.Emit) {
			for _, s := range m.classes.All() {
				admitted, denied := s.Admitted.Load(), s.Denied.Load()
				if s == m.classes.Other && admitted+denied == 0 {
					continue
				}
				emit(float64(admitted), s.Domain, s.Rule, s.Limit, s.Class, "admitted")
				emit(float64(denied), s.Domain, s.Rule, s.Limit, s.Class, "denied")
			}
		},
	}
}
