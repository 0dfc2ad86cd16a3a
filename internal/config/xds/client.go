package xds

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Client. Only Server must be set.
type Options struct {
	Server  string             // host:port, or another target of gRPC
	TLS     func() *tls.Config // called for every connection; nil disables TLS
	Headers map[string]string  // sent with the stream, by name; see ParseHeaders

	NodeID       string
	NodeMetadata map[string]string

	MaxMessageBytes int // largest size of one response; 0 means 64 MiB

	ConnectRetry time.Duration // between attempts to connect, plus or minus half; 0 means 3 s
	Backoff      Backoff       // before reconnecting after a stream has ended; zero means 10 s to 60 s, plus or minus half

	// RejectedRetry is the shortest and RejectedRetryMax the longest wait before a repeated NACK for the same rules; 0
	// means 1 s and 30 s. A server that sends corrected rules only after a NACK is delayed by that wait.
	RejectedRetry, RejectedRetryMax time.Duration

	MergeDomains bool               // resources of one domain are merged, see config.ResourceOptions
	Tree         descriptor.Options // see config.ResourceOptions
	Logger       *slog.Logger       // nil means slog.Default()
	Metrics      metric.Registry    // nil disables metrics

	pingEvery, pingTimeout time.Duration // shorter in tests
}

func (o *Options) setDefaults() error {
	if err := checkServer(o.Server); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value time.Duration
	}{{"connect retry interval", o.ConnectRetry}, {"initial backoff", o.Backoff.Initial},
		{"largest backoff", o.Backoff.Max}, {"rejected retry", o.RejectedRetry}} {
		if n.value < 0 {
			return fmt.Errorf("%s %s: must not be below 0", n.name, n.value)
		}
	}
	if o.Backoff.Factor < 0 || o.Backoff.Factor > 1 {
		return fmt.Errorf("random factor of the backoff %g: must be from 0 to 1", o.Backoff.Factor)
	}
	if o.MaxMessageBytes < 0 {
		return fmt.Errorf("largest message %d: must not be below 0", o.MaxMessageBytes)
	}
	if o.Backoff == (Backoff{}) {
		o.Backoff.Factor = 0.5
	}
	defaultTo(&o.Backoff.Initial, 10*time.Second)
	defaultTo(&o.Backoff.Max, 60*time.Second)
	o.Backoff.Max = max(o.Backoff.Max, o.Backoff.Initial)
	defaultTo(&o.ConnectRetry, 3*time.Second)
	defaultTo(&o.RejectedRetry, time.Second)
	defaultTo(&o.RejectedRetryMax, 30*time.Second)
	o.RejectedRetryMax = max(o.RejectedRetryMax, o.RejectedRetry)
	defaultTo(&o.MaxMessageBytes, 64<<20)
	defaultTo(&o.pingEvery, pingEvery)
	defaultTo(&o.pingTimeout, pingTimeout)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Client receives rules from one server.
type Client struct {
	o       Options
	node    *corev3.Node
	rules   *config.Resources
	metrics metrics
	log     *slog.Logger

	// Only Run's goroutine uses the fields below.
	inForce  sum  // the content of the active set
	have     bool // a set of rules is active; it may be empty
	rejected rejections
	failures int // streams in a row that ended without a response
	logged   complaints
}

// New returns a client that has not connected yet. It fails if the options are invalid.
func New(o Options) (*Client, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("rules over xDS: %w", err)
	}
	conn, err := connect(&o) // nothing is dialled yet
	if err != nil {
		return nil, fmt.Errorf("rules over xDS: %w", err)
	}
	_ = conn.Close()
	c := &Client{
		o:    o,
		node: node(o.NodeID, o.NodeMetadata),
		rules: config.NewResources(config.ResourceOptions{MergeDomains: o.MergeDomains, Tree: o.Tree, Logger: o.Logger,
			Metrics: o.Metrics}),
		log:      o.Logger.With("server", o.Server),
		rejected: rejections{first: o.RejectedRetry, most: o.RejectedRetryMax},
	}
	metric.Register(o.Metrics, c.metrics.families()...)
	return c, nil
}

// Files returns the state of every resource, sorted by name. The result must not be modified.
func (c *Client) Files() []descriptor.FileStatus { return c.rules.Files() }

// Statistics calls visit for the counters that envoyproxy/ratelimit has too. Their names in envoyproxy/ratelimit are
// path.stat.
func (c *Client) Statistics(visit func(path, stat string, n uint64)) { c.rules.Statistics(visit) }

// WriteStats writes the counters that envoyproxy/ratelimit does not have, as lines of "name: value".
func (c *Client) WriteStats(w io.Writer) { c.metrics.writeStats(w) }

// Run receives rules until ctx is done, and calls apply whenever the active rules change. Calls of apply do not
// overlap, and the server gets its answer after apply has returned. Run returns nil.
//
// While no stream is open the active rules stay, and the rules of a resource stay when its next version is rejected. A
// result without a tree means that all received rules were rejected and none were active before.
func (c *Client) Run(ctx context.Context, apply func(config.Result)) error {
	for {
		end := c.stream(ctx, apply)
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		wait := spread(c.o.ConnectRetry, 0.5, rand.Float64())
		if end.opened {
			wait = c.o.Backoff.after(c.failures, rand.Float64())
			c.failures++
		}
		c.logEnding(end, wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// ending describes how a stream ended.
type ending struct {
	opened bool // the server was reached
	err    error
}

// complaints are the reasons for the missing stream that have been logged since the last stream.
type complaints struct {
	texts []string
	last  time.Time
}

// news reports whether to log a reason: the first few different ones, and after that one in a minute. The number of
// different reasons is bounded because some contain a port number.
func (c *complaints) news(text string, now time.Time) bool {
	if fresh := len(c.texts) < 5 && !slices.Contains(c.texts, text); fresh {
		c.texts = append(c.texts, text)
	} else if now.Sub(c.last) < time.Minute {
		return false
	}
	c.last = now
	return true
}

// logEnding logs why the stream ended.
func (c *Client) logEnding(end ending, wait time.Duration) {
	text := end.err.Error()
	if !c.logged.news(text, time.Now()) {
		return
	}
	msg := "cannot connect to the xDS server"
	if end.opened {
		msg = "the stream from the xDS server has ended"
	}
	if c.have {
		msg += ", the active rules stay"
	} else {
		msg += ", no rules are active"
	}
	log := c.log
	if large := (tooLarge{}); errors.As(end.err, &large) {
		log = log.With("hint", "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")
	}
	log.Error(msg, "error", text, "retry_in", wait.Round(time.Millisecond))
}
