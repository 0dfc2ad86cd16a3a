package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

// eventOptions are the settings of events.
type eventOptions struct {
	To          string `name:"events" env:"RATELIMITD_EVENTS" placeholder:"URL|FILE|stdout" help:"Destination of CloudEvents about denials, warnings and penalties: a webhook's http or https URL, a file, or stdout."`
	Source      string `name:"events-source" env:"RATELIMITD_EVENTS_SOURCE" default:"/ratelimitd" placeholder:"URI" help:"Source of the events, a URI; the same in replicas that share counters."`
	Values      bool   `name:"events-values" env:"RATELIMITD_EVENTS_VALUES" help:"Send the values of entries too, which may be personal data."`
	PerSecond   int64  `name:"events-per-second" env:"RATELIMITD_EVENTS_PER_SECOND" range:"1.." default:"100" help:"Maximum events per second; the rest is dropped."`
	Batch       int    `name:"events-batch" env:"RATELIMITD_EVENTS_BATCH" range:"1..1000" default:"1" help:"Maximum events in a request, up to 1,000; above 1, in the batched mode of CloudEvents."`
	HeadersFile string `name:"events-headers-file" env:"RATELIMITD_EVENTS_HEADERS_FILE" placeholder:"FILE" help:"Headers for the webhook, one Name: value on each line."`
	CACert      string `name:"events-tls-cacert" env:"RATELIMITD_EVENTS_TLS_CACERT" placeholder:"FILE" help:"Trusted authorities, in addition to the system's."`
	ClientCert  string `name:"events-tls-client-cert" env:"RATELIMITD_EVENTS_TLS_CLIENT_CERT" placeholder:"FILE" help:"Client certificate."`
	ClientKey   string `name:"events-tls-client-key" env:"RATELIMITD_EVENTS_TLS_CLIENT_KEY" placeholder:"FILE" help:"Private key."`
}

// longestFlush is how long a stop waits for the receiver of events, and for the collector of spans, if the stop timeout is
// not shorter. One that answers takes milliseconds; one that hangs must not delay every stop.
const longestFlush = time.Second

// events makes the sink of events, if they are on.
func (s *starting) events(_ context.Context, opts *service.Options) error {
	o := &s.options.Events
	to := events.Options{
		To:          o.To,
		Stdout:      s.options.Stdout,
		HeadersFile: o.HeadersFile,
		Source:      o.Source,
		Values:      o.Values,
		PerSecond:   o.PerSecond,
		Batch:       o.Batch,
		StopWithin:  min(longestFlush, s.options.Listen.StopTimeout),
		Metrics:     prom.With(s.registry),
		Logger:      s.log,
	}
	scheme, _, _ := strings.Cut(strings.ToLower(o.To), "://")
	files := given("RATELIMITD_EVENTS_TLS_CACERT", o.CACert, "RATELIMITD_EVENTS_TLS_CLIENT_CERT", o.ClientCert, "RATELIMITD_EVENTS_TLS_CLIENT_KEY", o.ClientKey)
	switch {
	case o.To == "":
		return nil
	case scheme == "https":
		tls, err := tlsfiles.Load(tlsfiles.Options{
			Use: "events", Cert: o.ClientCert, Key: o.ClientKey, CA: o.CACert, Log: s.log, Metrics: prom.With(s.registry),
		})
		if err != nil {
			return fmt.Errorf("%s: %w", files, err)
		}
		to.TLS = tls.Client
		s.tasks.Add(tls.Run)
	case files != "":
		s.log.Warn("files of TLS have no effect, because RATELIMITD_EVENTS is no https URL", "variables", files)
	}
	if scheme == "http" && o.HeadersFile != "" {
		s.log.Warn("the headers of RATELIMITD_EVENTS_HEADERS_FILE are sent in plain text, because RATELIMITD_EVENTS is no https URL")
	}
	sink, err := events.New(to)
	if of, ok := errors.AsType[*events.SettingError](err); ok {
		return fmt.Errorf("%s: %w", map[string]string{
			"To": "RATELIMITD_EVENTS", "Source": "RATELIMITD_EVENTS_SOURCE", "HeadersFile": "RATELIMITD_EVENTS_HEADERS_FILE",
		}[of.Setting], err)
	}
	opts.Limiter.Events = sink
	s.tasks.Add(sink.Run)
	return nil
}
