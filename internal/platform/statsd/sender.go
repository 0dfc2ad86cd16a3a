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

// Options are the settings of a Sender. Source and Address are required.
type Options struct {
	Source  Source
	Timings *Timings // response times; nil sends none

	Network string // "tcp" or "udp"; default udp
	Address string // host:port

	// Datadog is set if the listener understands DogStatsD. Then tags are sent as tags, and Mogrifiers apply. Otherwise
	// tags become part of names.
	Datadog    bool
	Tags       []Tag
	Mogrifiers []Mogrifier

	Interval time.Duration         // interval between two flushes; default 10 s
	Log      *slog.Logger          // default slog.Default()
	Metrics  prometheus.Registerer // nil disables metrics
}

// Sender sends the changes of statistics at every interval.
type Sender struct {
	options Options
	client  *statsd.Client
	conn    *conn

	counters map[name]*sentCounter
	gauges   map[name]sentAs
	timing   sentAs
	sample   []float64

	failing bool          // the last flush failed
	lost    atomic.Uint64 // lines and payloads that could not be sent
}

// sentCounter is a statistic that only grows.
type sentCounter struct {
	sentAs
	now  uint64 // value in this flush
	sent uint64 // value at the last flush that was sent
}

// sentAs is the name and the tags under which a statistic is sent.
type sentAs struct {
	name string
	tags []string
}

// Over UDP a payload is one packet, which should not be fragmented: with the additions to each line it stays below
// 1,432 bytes.
const (
	packetSize  = 1150 // bytes
	packetLines = 25
	streamSize  = 16 << 10 // bytes

	batch = 500 // lines between flushes of the client, whose queue is bounded

	// spare is the number of empty payloads that the client keeps. It allocates all of them at the start, and uses them in
	// turn: with its default of 2,048, the process would grow by 33 MB over TCP, one payload after the other.
	spare = 4
)

// New returns a sender for Run. It does not connect yet.
func New(opts Options) (*Sender, error) {
	opts.Network = cmp.Or(opts.Network, "udp")
	opts.Interval = cmp.Or(opts.Interval, 10*time.Second)
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	s := &Sender{
		options:  opts,
		conn:     &conn{network: opts.Network, address: opts.Address, plain: !opts.Datadog},
		counters: make(map[name]*sentCounter),
		gauges:   make(map[name]sentAs),
	}
	size, lines := packetSize, packetLines
	if opts.Network == "tcp" {
		size, lines = streamSize, batch
	}
	set := []statsd.Option{
		statsd.WithoutTelemetry(),             // send no statistics of the client itself
		statsd.WithoutClientSideAggregation(), // values are aggregated already
		statsd.WithWorkersCount(1),            // one goroutine sends
		statsd.WithMaxBytesPerPayload(size),
		statsd.WithMaxMessagesPerPayload(lines),
		statsd.WithSenderQueueSize(2 * batch), // even if every line filled a payload
		statsd.WithBufferPoolSize(spare),
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
	s.timing = s.sentAs(name{ResponseTimePath, ResponseTimeStat})
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_statsd_errors_total",
			Help: "Failed attempts to send statistics to StatsD.",
		}, func() float64 { return float64(s.lost.Load()) }))
	}
	return s, nil
}

// Run flushes at every interval, and once more when ctx ends. Values that cannot be sent are lost, except that counters
// are sent with the next flush if the connection could not be opened.
func (s *Sender) Run(ctx context.Context) error {
	ticks := time.NewTicker(s.options.Interval)
	defer ticks.Stop()
	defer func() { _ = s.client.Close() }()
	for {
		select {
		case <-ticks.C:
			s.flush()
		case <-ctx.Done():
			s.flush()
			return nil
		}
	}
}

// flush sends the changes since the last flush, gauges and response times.
func (s *Sender) flush() {
	if err := s.conn.renew(); err != nil {
		if !s.failing {
			s.options.Log.Warn("cannot connect to StatsD: statistics are not sent", "address", s.options.Address, "network",
				s.options.Network, "error", err)
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
		if err != nil { // the line is longer than a payload
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
func (s *Sender) count() map[name]*sentCounter {
	for _, c := range s.counters {
		c.now = 0
	}
	s.options.Source.Counters(func(path, stat string, n uint64) {
		key := name{path, stat}
		c := s.counters[key]
		if c == nil && n == 0 {
			return // most counters stay 0, and take no memory here
		}
		if c == nil {
			c = &sentCounter{sentAs: s.sentAs(key)}
			s.counters[key] = c
		}
		c.now += n
	})
	return s.counters
}

func (s *Sender) gauge(key name) sentAs {
	g, ok := s.gauges[key]
	if !ok {
		g = s.sentAs(key)
		s.gauges[key] = g
	}
	return g
}

func (s *Sender) sentAs(key name) sentAs {
	if s.options.Datadog {
		text, tags := mogrify(s.options.Mogrifiers, key.String())
		return sentAs{text, tags}
	}
	return sentAs{plain(key.String(), s.options.Tags), nil}
}

// sendTimings sends the sample of response times with its sample rate.
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

// failed counts a payload or line that could not be sent.
func (s *Sender) failed(err error) {
	s.lost.Add(1)
	s.options.Log.Debug("sending to StatsD", "error", err)
}
