//go:build linux && cgo

package main

// #include "abi.h"
import "C"

import (
	"bytes"
	"context"
	"log/slog"
	"sync/atomic"
)

// open is the number of configurations. Without one Envoy may be ending, and its log with it.
var open atomic.Int64

// logHandler drops records without an open configuration. It also drops debug records: while Redis is gone there may be
// one for each request.
type logHandler struct{ slog.Handler }

func newLogHandler() slog.Handler {
	return logHandler{slog.NewTextHandler(envoyLog{}, &slog.HandlerOptions{ReplaceAttr: withoutTime})}
}

func (h logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && open.Load() > 0
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}
func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }

// withoutTime leaves out the time, which Envoy's log adds.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// longestLine bounds a line, because logged values may come from a request. In bytes.
const longestLine = 8 << 10

// envoyLog writes lines to Envoy's log.
type envoyLog struct{}

func (envoyLog) Write(text []byte) (int, error) {
	level := C.uint32_t(C.level_info)
	switch {
	case bytes.HasPrefix(text, []byte("level=WARN")):
		level = C.level_warning
	case bytes.HasPrefix(text, []byte("level=ERROR")):
		level = C.level_error
	}
	line := "ratelimitd: " + string(bytes.TrimSpace(text[:min(len(text), longestLine)]))
	C.ratelimitd_log(level, chars(line), C.size_t(len(line)))
	return len(text), nil
}
