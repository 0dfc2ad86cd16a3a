package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events/destination"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// eventOptions are the settings of events.
type eventOptions struct {
	To          string `name:"events" env:"RATELIMITD_EVENTS" placeholder:"URL|FILE|stdout" help:"Destination of CloudEvents."`
	Values      bool   `name:"events-values" env:"RATELIMITD_EVENTS_VALUES" help:"Send entries' values too, which may be personal data."`
	HeadersFile string `name:"events-headers-file" env:"RATELIMITD_EVENTS_HEADERS_FILE" placeholder:"FILE" help:"Headers for the webhook, one Name: value on each line."`
}

// longestFlush is the longest time for which a stop waits for the receiver of events, and for the collector of spans,
// if the stop timeout is not shorter. One that answers takes milliseconds; one that hangs must not delay every stop.
const longestFlush = time.Second

// events opens the sink of events, if they are on.
func (s *starting) events(_ context.Context, opts *service.Options) error {
	o := &s.options.Events
	scheme, _, _ := strings.Cut(strings.ToLower(o.To), "://")
	if o.To == "" {
		return nil
	}
	if scheme == "http" && o.HeadersFile != "" {
		s.log.Warn("the headers of RATELIMITD_EVENTS_HEADERS_FILE are sent in plain text, because RATELIMITD_EVENTS is " +
			"no https URL")
	}
	to, err := destination.Open(destination.Options{To: o.To, Stdout: s.options.Stdout, HeadersFile: o.HeadersFile})
	if of, ok := errors.AsType[*destination.SettingError](err); ok {
		return fmt.Errorf("%s: %w", map[string]string{
			"To": "RATELIMITD_EVENTS", "HeadersFile": "RATELIMITD_EVENTS_HEADERS_FILE",
		}[of.Setting], err)
	}
	sink := events.New(events.Options{
		To:         to,
		Values:     o.Values,
		StopWithin: min(longestFlush, s.options.Listen.StopTimeout),
		Metrics:    prom.With(s.registry),
		Logger:     s.log,
	})
	opts.Limiter.Events = sink
	s.tasks.Add(sink.Run)
	return nil
}
