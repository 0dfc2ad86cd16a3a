package tracing

import (
	"context"
	"log/slog"
	"strings"
)

// withoutInput passes on the log of OpenTelemetry's libraries without the values of variables. The libraries repeat a
// value that they cannot parse, and OTEL_EXPORTER_OTLP_HEADERS or an endpoint may contain a password.
type withoutInput struct{ slog.Handler }

// Handle implements slog.Handler.
func (h withoutInput) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError || !strings.Contains(r.Message, "parse") && !strings.HasPrefix(r.Message, "escape") {
		return h.Handler.Handle(ctx, r)
	}
	safe := slog.NewRecord(r.Time, slog.LevelWarn, "an OTEL_ variable, or a part of it, cannot be parsed and is ignored",
		r.PC)
	safe.AddAttrs(slog.String("doing", r.Message), slog.String("write", rightForm(r.Message)))
	return h.Handler.Handle(ctx, safe)
}

// rightForm returns the variable and its valid form for a message of the libraries.
func rightForm(doing string) string {
	switch {
	case strings.Contains(doing, "url"):
		return "OTEL_EXPORTER_OTLP_ENDPOINT, or _TRACES_ENDPOINT: http://host:port or https://host:port"
	case strings.Contains(doing, "header"):
		return "OTEL_EXPORTER_OTLP_HEADERS, or _TRACES_HEADERS: name=value,name=value, with %-escapes in values"
	default:
		return "OTEL_EXPORTER_OTLP_TIMEOUT, or _TRACES_TIMEOUT: milliseconds"
	}
}

// WithAttrs implements slog.Handler.
func (h withoutInput) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withoutInput{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h withoutInput) WithGroup(name string) slog.Handler {
	return withoutInput{h.Handler.WithGroup(name)}
}
