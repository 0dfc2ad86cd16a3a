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

// Options say what is traced and how it is sent. Where it is sent, the OTEL_ variables say.
type Options struct {
	Protocol string // of OTLP: "http" (protobuf over HTTP) or "grpc"; default "http"

	ServiceName       string // default: what the OTEL_ variables say, else "RateLimit"
	ServiceNamespace  string // default: what the OTEL_ variables say, else none
	ServiceInstanceID string // default: what the OTEL_ variables say, else a random one

	// SamplingRate is the share of requests that are sampled among those whose caller sent no trace, 0 to 1. Where a
	// caller sent one, its decision holds.
	SamplingRate float64

	Log *slog.Logger // of what goes wrong in sending; default slog.Default()
}

// Tracing is a running exporter of spans.
type Tracing struct {
	rate     float64
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

// Start gets everything ready to send spans. A collector that cannot be reached is no error: spans are dropped, which
// is logged, and requests do not wait. What is started must be stopped.
func Start(ctx context.Context, o Options) (*Tracing, error) {
	if o.SamplingRate < 0 || o.SamplingRate > 1 || o.SamplingRate != o.SamplingRate {
		return nil, fmt.Errorf("trace: sampling rate %v: use a share from 0 to 1", o.SamplingRate)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	// Before the clients are made: that reads the variables, and tells what is wrong with them.
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
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // only sampled requests begin a span
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(about),
	)
	return &Tracing{rate: o.SamplingRate, provider: provider, tracer: provider.Tracer("github.com/ratelimitd/ratelimitd")}, nil
}

// resource is who sends the spans: what the options say, else the OTEL_ variables, else the defaults.
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
		resource.WithAttributes(attribute.String("service.name", "RateLimit"), attribute.String("service.instance.id", rand.Text())),
		resource.WithFromEnv(),
		resource.WithAttributes(given...),
	)
}

// Stop sends what has not been sent yet, until ctx is done.
func (t *Tracing) Stop(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// failures logs what goes wrong in sending; the same again only after a while.
type failures struct {
	log *slog.Logger

	mu   sync.Mutex
	last string
	at   time.Time
}

// repeatAfter is how long the same failure is not logged again.
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
