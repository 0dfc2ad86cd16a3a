package tracing

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options are the settings of a Tracing. The OTEL_ variables set the endpoint.
type Options struct {
	Protocol string // OTLP protocol: "http" (protobuf over HTTP) or "grpc"; default "http"

	ServiceName       string // default: from the OTEL_ variables, otherwise "RateLimit"
	ServiceNamespace  string // default: from the OTEL_ variables, otherwise empty
	ServiceInstanceID string // default: from the OTEL_ variables, otherwise random

	// SamplingRate is the fraction of requests without a client's trace that are sampled, 0 to 1. For the others the
	// client's decision holds.
	SamplingRate float64

	Log     *slog.Logger          // logs errors of the export; default slog.Default()
	Metrics prometheus.Registerer // nil disables metrics
}

// Tracing is a running exporter of spans.
type Tracing struct {
	rate     float64
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

// Start starts the exporter. An unreachable collector is not an error: spans are dropped, the log reports it, and
// requests do not wait. The caller must call Stop.
func Start(ctx context.Context, o Options) (*Tracing, error) {
	if o.SamplingRate < 0 || o.SamplingRate > 1 || o.SamplingRate != o.SamplingRate {
		return nil, fmt.Errorf("trace: sampling rate %v: use a share from 0 to 1", o.SamplingRate)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	// This must come first, because the clients read the variables and log their errors when they are created.
	otel.SetErrorHandler(&failures{log: o.Log})
	otel.SetLogger(logr.FromSlogHandler(withoutInput{o.Log.Handler()}))
	var client otlptrace.Client
	switch strings.ToLower(o.Protocol) {
	case "", "http":
		client = otlptracehttp.NewClient()
	case "grpc":
		client = otlptracegrpc.NewClient()
	default:
		return nil, fmt.Errorf("trace: protocol %q: use http or grpc", o.Protocol)
	}
	about, err := o.resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("trace: read the OTEL_ variables: %w", err)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("trace: start the exporter: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // only sampled requests start a span
		sdktrace.WithSpanProcessor(newQueue(exporter, o.Metrics)),
		sdktrace.WithResource(about),
	)
	return &Tracing{rate: o.SamplingRate, provider: provider, tracer: provider.Tracer("github.com/ratelimitd/ratelimitd")},
		nil
}

// resource describes this service in spans: from the options, then the OTEL_ variables, then the defaults.
func (o *Options) resource(ctx context.Context) (*resource.Resource, error) {
	var given []attribute.KeyValue
	for key, value := range map[attribute.Key]string{
		"service.name":        o.ServiceName,
		"service.namespace":   o.ServiceNamespace,
		"service.instance.id": o.ServiceInstanceID,
	} {
		if value != "" {
			given = append(given, key.String(value))
		}
	}
	return resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "RateLimit"),
			attribute.String("service.instance.id", rand.Text())),
		resource.WithFromEnv(),
		resource.WithAttributes(given...),
	)
}

// Stop sends the remaining spans, until ctx is done.
func (t *Tracing) Stop(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// failures logs errors of the export. The same error is logged again only after repeatAfter.
type failures struct {
	log *slog.Logger

	mu   sync.Mutex
	last string
	at   time.Time
}

// repeatAfter is the shortest time between two log lines with the same error.
const repeatAfter = time.Minute

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text, now := err.Error(), time.Now(); text != f.last || now.Sub(f.at) >= repeatAfter {
		f.last, f.at = text, now
		f.log.Warn("cannot send spans", "error", err)
	}
}
