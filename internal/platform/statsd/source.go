package statsd

// Source provides the current statistics. The name of a statistic is path.stat. The parts are passed separately, so
// that reading ten thousand numbers does not build ten thousand names. visit may be called twice with one name:
// counters are added up, and the last gauge counts.
type Source struct {
	Counters func(visit func(path, stat string, n uint64)) // totals since the process started
	Gauges   func(visit func(path, stat string, n uint64)) // nil without gauges
}

// name is a statistic's name in its two parts.
type name struct{ path, stat string }

func (n name) String() string { return n.path + "." + n.stat }

// Name of the statistic of response times. It is neither a counter nor a gauge: each time is observed when it occurs.
const (
	ResponseTimePath = "ratelimit_server.ShouldRateLimit"
	ResponseTimeStat = "response_time"
)
