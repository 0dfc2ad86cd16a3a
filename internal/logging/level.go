package logging

import (
	"fmt"
	"log/slog"
	"strings"
)

// Level is the level from which on things are logged. The zero value is info.
type Level struct{ slog.LevelVar }

// levels by name; the names beyond the four that this service logs at are those that envoyproxy/ratelimit accepts.
var levels = map[string]slog.Level{
	"trace":   slog.LevelDebug,
	"debug":   slog.LevelDebug,
	"info":    slog.LevelInfo,
	"warn":    slog.LevelWarn,
	"warning": slog.LevelWarn,
	"error":   slog.LevelError,
	"fatal":   slog.LevelError,
	"panic":   slog.LevelError,
}

// Set changes the level to the one of that name, in any case. The error says which names there are.
func (l *Level) Set(name string) error {
	level, ok := levels[strings.ToLower(name)]
	if !ok {
		return fmt.Errorf("log level %q: use debug, info, warning or error", name)
	}
	l.LevelVar.Set(level)
	return nil
}

// String is the level's name, which Set accepts.
func (l *Level) String() string { return levelName(l.Level()) }

// levelName is what a level is called in logs.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warning"
	default:
		return "error"
	}
}
