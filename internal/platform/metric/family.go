package metric

import "sync/atomic"

// Family is one metric. Exactly one of Counts, Levels and Durations is set.
type Family struct {
	Name, Help string
	Labels     []string          // the function below passes their values to emit, in this order
	Fixed      map[string]string // further labels, with the same value in all series

	Counts    func(emit Emit)          // reads a counter: values that only grow
	Levels    func(emit Emit)          // reads a gauge: values that grow and shrink
	Durations func(emit EmitDurations) // reads a histogram, in seconds
}

// Emit receives the value of one series, with the values of its labels.
type Emit func(value float64, labels ...string)

// EmitDurations receives one series of a histogram, with the values of its labels.
type EmitDurations func(d *Durations, labels ...string)

// Registry registers the metrics of a package.
type Registry interface {
	// Register adds families. It panics if one of them is already registered.
	Register(families ...Family)
}

// Register registers families unless r is nil.
func Register(r Registry, families ...Family) {
	if r != nil {
		r.Register(families...)
	}
}

type number interface {
	int | int64 | uint64 | float64
}

// Counter returns the family of a counter without labels.
func Counter[N number](name, help string, read func() N) Family {
	return Family{Name: name, Help: help, Counts: one(read)}
}

// Gauge returns the family of a gauge without labels.
func Gauge[N number](name, help string, read func() N) Family {
	return Family{Name: name, Help: help, Levels: one(read)}
}

func one[N number](read func() N) func(Emit) {
	return func(emit Emit) { emit(float64(read())) }
}

// Counters returns the family of counters that differ in one label: counts[i] has the value values[i] of the label.
func Counters(name, help, label string, values []string, counts []atomic.Uint64) Family {
	return Family{Name: name, Help: help, Labels: []string{label}, Counts: func(emit Emit) {
		for i, value := range values {
			emit(float64(counts[i].Load()), value)
		}
	}}
}

// Bool returns 1 for true and 0 for false, the values of gauges that show a state.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
