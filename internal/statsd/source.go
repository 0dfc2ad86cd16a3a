package statsd

// Source tells the statistics as they are now. A statistic's name is its path, a dot, and stat: parts that the teller has
// at hand, so that nobody has to put ten thousand names together to hear of ten thousand numbers. Two calls of visit may
// have one name: for counters their sum is meant, for gauges the last.
type Source struct {
	Counters func(visit func(path, stat string, n uint64)) // since the process began
	Gauges   func(visit func(path, stat string, n uint64)) // nil: there are none
}

// name is a statistic's name in its two parts.
type name struct{ path, stat string }

func (n name) String() string { return n.path + "." + n.stat }

// Response times are a statistic of their own kind: each is told as it happens.
const (
	ResponseTimePath = "ratelimit_server.ShouldRateLimit"
	ResponseTimeStat = "response_time"
)
