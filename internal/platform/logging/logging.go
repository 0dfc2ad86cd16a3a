package logging

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// Options are the settings of a logger.
type Options struct {
	Format string // "text" or "json", in any case; default "text"
	Level  *Level // default: a fixed level of info
}

// New returns a logger that writes one line per record to w, with one call of Write. A line has at most MaxRecord
// bytes: longer values are cut, with a mark.
func New(w io.Writer, o Options) (*slog.Logger, error) {
	if o.Level == nil {
		o.Level = new(Level)
	}
	var h slog.Handler
	switch strings.ToLower(o.Format) {
	case "", "text":
		h = slog.NewTextHandler(shortWriter{w}, &slog.HandlerOptions{Level: o.Level})
	case "json":
		h = slog.NewJSONHandler(shortWriter{w}, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: referenceFields})
	default:
		return nil, fmt.Errorf("log format %q: use text or json", o.Format)
	}
	return slog.New(bounded{h, h}), nil
}

// referenceFields renames the standard fields as in the logs of envoyproxy/ratelimit: @timestamp, @message and level,
// which is in lower case. Durations are written with a unit, because slog would write a number of nanoseconds.
func referenceFields(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		if a.Value.Kind() == slog.KindTime {
			return slog.String("@timestamp", a.Value.Time().Format(time.RFC3339Nano))
		}
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			return slog.String(slog.LevelKey, levelName(level))
		}
	case slog.MessageKey:
		a.Key = "@message"
	}
	return a
}
