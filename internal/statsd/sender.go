package statsd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"github.com/prometheus/client_golang/prometheus"
)

// Options are what a Sender is made of. Source and Address are required.
type Options struct {
	Source  Source
	Timings *Timings // response times; nil: none are sent

	Network string // "tcp" or "udp"; default udp
	Address string // host:port

	// Datadog says that the listener understands DogStatsD. Tags are sent as its tags then, and Mogrifiers apply; else
	// tags become part of names.
	Datadog    bool
	Tags       []Tag
	Mogrifiers []Mogrifier

	Interval time.Duration         // between two rounds; default 10 s
	Log      *slog.Logger          // default slog.Default()
	Metrics  prometheus.Registerer // nil: no metrics
}

// Sender sends what has changed, round after round.
type Sender struct {
	options Options
	client  *statsd.Client
	conn    *conn

	counters map[name]*counter
	gauges   map[name]line
	timing   line
	sample   []float64

	failing bool          // the last round could not be sent
	lost    atomic.Uint64 // lines and payloads that could not be sent
}

// counter is a statistic that grows.
type counter struct {
	line
	now  uint64 // in this round
	sent uint64 // what the listener has been told
}

// line is a statistic as the listener knows it.
type line struct {
	name string
	tags []string
}

// Over UDP a payload is one packet, which should not be split on its way: with what is added to each line it stays below
// 1,432 bytes.
const (
	packetSize  = 1150 // bytes
	packetLines = 25
	streamSize  = 16 << 10 // bytes

	batch = 500 // lines after which the client is made to send: more may wait than it has room for
)

// New returns a sender that Run runs. It does not connect yet.
func New(opts Options) (*Sender, error) {
	opts.Network = cmp.Or(opts.Network, "udp")
	opts.Interval = cmp.Or(opts.Interval, 10*time.Second)
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	s := &Sender{
		options:  opts,
		conn:     &conn{network: opts.Network, address: opts.Address, plain: !opts.Datadog},
		counters: make(map[name]*counter),
		gauges:   make(map[name]line),
	}
	size, lines := packetSize, packetLines
	if opts.Network == "tcp" {
		size, lines = streamSize, batch
	}
	set := []statsd.Option{
		statsd.WithoutTelemetry(),             // only what was asked for is sent
		statsd.WithoutClientSideAggregation(), // it has been done
		statsd.WithWorkersCount(1),            // there is one that sends
		statsd.WithMaxBytesPerPayload(size),
		statsd.WithMaxMessagesPerPayload(lines),
		statsd.WithSenderQueueSize(2 * batch), // even if every line filled a payload
		statsd.WithErrorHandler(s.failed),
	}
	if opts.Datadog {
		set = append(set, statsd.WithTags(datadog(opts.Tags)))
	} else {
		set = append(set, statsd.WithoutOriginDetection())
	}
	client, err := statsd.NewWithWriter(s.conn, set...)
	if err != nil {
		return nil, fmt.Errorf("make StatsD client: %w", err)
	}
	s.client = client
	s.timing = s.line(name{ResponseTimePath, ResponseTimeStat})
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_statsd_errors_total",
			Help: "Payloads and statistics that could not be sent to StatsD.",
		}, func() float64 { return float64(s.lost.Load()) }))
	}
	return s, nil
}

// Run sends a round every interval, and a last one when ctx ends. What cannot be sent is lost, but counters that could
// not even try are sent with the next round.
func (s *Sender) Run(ctx context.Context) error {
	ticks := time.NewTicker(s.options.Interval)
	defer ticks.Stop()
	defer func() { _ = s.client.Close() }()
	for {
		select {
		case <-ticks.C:
			s.round()
		case <-ctx.Done():
			s.round()
			return nil
		}
	}
}

// round sends what there is to tell.
func (s *Sender) round() {
	if err := s.conn.renew(); err != nil {
		if !s.failing {
			s.options.Log.Warn("statistics are not sent: nobody listens for StatsD", "address", s.options.Address, "network", s.options.Network, "error", err)
		}
		s.failing = true
		s.lost.Add(1)
		return
	}
	if s.failing {
		s.options.Log.Info("statistics are sent again", "address", s.options.Address)
	}
	s.failing = false

	lines := 0
	sent := func(err error) {
		if err != nil { // a line that is longer than a payload
			s.failed(err)
		}
		if lines++; lines%batch == 0 {
			_ = s.client.Flush()
		}
	}
	for _, c := range s.count() {
		if c.now > c.sent {
			sent(s.client.Count(c.name, int64(c.now-c.sent), c.tags, 1))
			c.sent = c.now
		}
	}
	if s.options.Source.Gauges != nil {
		s.options.Source.Gauges(func(path, stat string, n uint64) {
			g := s.gauge(name{path, stat})
			sent(s.client.Gauge(g.name, float64(n), g.tags, 1))
		})
	}
	_ = s.client.Flush()
	s.sendTimings()
}

// count reads the counters.
func (s *Sender) count() map[name]*counter {
	for _, c := range s.counters {
		c.now = 0
	}
	s.options.Source.Counters(func(path, stat string, n uint64) {
		key := name{path, stat}
		c := s.counters[key]
		if c == nil && n == 0 {
			return // most never count: they take no memory here
		}
		if c == nil {
			c = &counter{line: s.line(key)}
			s.counters[key] = c
		}
		c.now += n
	})
	return s.counters
}

func (s *Sender) gauge(key name) line {
	g, ok := s.gauges[key]
	if !ok {
		g = s.line(key)
		s.gauges[key] = g
	}
	return g
}

func (s *Sender) line(key name) line {
	if s.options.Datadog {
		text, tags := mogrify(s.options.Mogrifiers, key.String())
		return line{text, tags}
	}
	return line{plain(key.String(), s.options.Tags), nil}
}

// sendTimings sends the sample of response times, and with each of them how many it stands for.
func (s *Sender) sendTimings() {
	if s.options.Timings == nil {
		return
	}
	var count uint64
	s.sample, count = s.options.Timings.take(s.sample[:0])
	if len(s.sample) == 0 {
		return
	}
	s.conn.sample(float64(len(s.sample)) / float64(count))
	for i, seconds := range s.sample {
		if err := s.client.TimeInMilliseconds(s.timing.name, seconds*1000, s.timing.tags, 1); err != nil {
			s.failed(err)
		}
		if i%batch == batch-1 {
			_ = s.client.Flush()
		}
	}
	_ = s.client.Flush()
	s.conn.sample(1)
}

// failed counts what could not be sent.
func (s *Sender) failed(err error) {
	s.lost.Add(1)
	s.options.Log.Debug("sending to StatsD", "error", err)
}
