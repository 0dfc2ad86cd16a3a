package logging

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// Options say what a logger writes.
type Options struct {
	Format string // "text" or "json", in any case; default "text"
	Level  *Level // from which on; default info for good
}

// New returns a logger that writes a line per record to w, each with one call.
func New(w io.Writer, o Options) (*slog.Logger, error) {
	if o.Level == nil {
		o.Level = new(Level)
	}
	switch strings.ToLower(o.Format) {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: o.Level})), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: referenceFields})), nil
	default:
		return nil, fmt.Errorf("log format %q: use text or json", o.Format)
	}
}

// referenceFields gives the fields that every line has the names that they have in the logs of envoyproxy/ratelimit:
// @timestamp, @message and level, which is written in lower case. Durations, which slog would write as a number of
// nanoseconds, get their unit.
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
