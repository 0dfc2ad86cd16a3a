package tracing

import (
	"context"
	"log/slog"
	"strings"
)

// withoutInput logs what OpenTelemetry's libraries have to say, but not what they were given: of a variable that they
// cannot read they repeat the value, and OTEL_EXPORTER_OTLP_HEADERS and an endpoint may hold a password.
type withoutInput struct{ slog.Handler }

// Handle implements slog.Handler.
func (h withoutInput) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError || !strings.Contains(r.Message, "parse") && !strings.HasPrefix(r.Message, "escape") {
		return h.Handler.Handle(ctx, r)
	}
	safe := slog.NewRecord(r.Time, slog.LevelWarn, "an OTEL_ variable cannot be read, or a part of it: that is left out", r.PC)
	safe.AddAttrs(slog.String("doing", r.Message), slog.String("write", rightForm(r.Message)))
	return h.Handler.Handle(ctx, safe)
}

// rightForm says what may be written, for what could not be done.
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
