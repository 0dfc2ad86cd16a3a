package logging

import (
	"fmt"
	"log/slog"
	"strings"
)

// Level is the lowest level that is logged. The zero value is info.
type Level struct{ slog.LevelVar }

// levels by name. The service logs at four levels. The other names are accepted because envoyproxy/ratelimit accepts
// them.
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

// Set changes the level. The name may be in upper or lower case. The error lists the valid names.
func (l *Level) Set(name string) error {
	level, ok := levels[strings.ToLower(name)]
	if !ok {
		return fmt.Errorf("log level %q: use debug, info, warning or error", name)
	}
	l.LevelVar.Set(level)
	return nil
}

// String returns the level's name, as Set accepts it.
func (l *Level) String() string { return levelName(l.Level()) }

// levelName returns the name of a level in logs.
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
