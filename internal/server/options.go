package server

import (
	"context"
	"io/fs"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
)

const (
	handshakeTimeout = 5 * time.Second // time until a connection must speak the protocol

	pingAfter   = 30 * time.Second // silence of a client until it is pinged
	pingTimeout = 10 * time.Second // time for the answer to a ping; then the connection is closed

	// leastPingInterval is short, because Envoy pings as often as its connection_keepalive specifies, also without calls,
	// and 1 s and less are common there. A client that pings more often is disconnected (GOAWAY ENHANCE_YOUR_CALM).
	// grpc-go's default is 5 min.
	leastPingInterval = 10 * time.Millisecond
)

// Options are the parts and settings of a Server. Only Decider is required.
type Options struct {
	Decider Decider
	Shared  *endpoint.Shared // common parts of all ports; nil means defaults

	Listen      Listen
	Requests    Requests
	Calls       Calls
	Connections Connections
	Metrics     Metrics
	Tracer      Tracer // records decisions; nil disables tracing

	// Quota answers the rate limit quota service; without it, the service is UNIMPLEMENTED. QuotaStreamsMax is the largest
	// number of open streams; default 1,000. More are rejected with RESOURCE_EXHAUSTED.
	Quota           QuotaStreams
	QuotaStreamsMax int

	// Reflection enables the gRPC reflection service. Questions of 50 bytes have answers of 50 KB, so it should be off for
	// untrusted clients.
	Reflection bool

	// Reservations signs the ids of reservations. The default has a random key, so no other replica accepts the ids.
	Reservations *reservation.Signer

	DrainDelay time.Duration // time from red health to rejecting new calls; default 0
}

// QuotaStreams hands out shares of limits to the clients of the rate limit quota service.
type QuotaStreams interface {
	// Open returns a stream for the client with this address.
	Open(client string) QuotaStream
}

// QuotaStream is the stream of one client. One goroutine calls Report, another one Next and Sent.
type QuotaStream interface {
	// Report applies a client's report. It must not wait for anything, because other streams may wait for it. The slice
	// all and the slices inside it are reused after Report returns. A string in them keeps the whole message in memory, so
	// clone each string that is kept. The domain is the same string each time, and may be kept.
	Report(now time.Time, domain string, all []assigner.Usage)

	// Next waits for actions to send, and appends them to all. Its error is that of ctx.
	Next(ctx context.Context, all []assigner.Action) ([]assigner.Action, error)

	// Sent is called after the result of Next was passed to the transport.
	Sent(now time.Time)

	// Close is called once, when no other method is running. No method is called afterwards.
	Close(now time.Time)
}

// Listen configures the listeners for clients.
type Listen struct {
	GRPC string // host:port; default ":8081"
	HTTP string // host:port of /json, probes and metrics; default ":8080"

	// Socket is the path of a unix socket that replaces GRPC. A leading @ makes it abstract. SocketMode is the mode of its
	// file; 0 leaves it to the umask.
	Socket     string
	SocketMode fs.FileMode

	Credentials credentials.TransportCredentials // gRPC credentials; nil means plain text
}

// Requests bounds one request. The bounds apply while it is decoded, before memory is spent: two bytes on the wire
// become an entry of 32 bytes, and {} in JSON becomes one of a hundred.
type Requests struct {
	MaxBytes       int // message size; default 4 MiB
	MaxDescriptors int // per request; default 256
	MaxEntries     int // per descriptor; default 256
	MaxTextBytes   int // length of a domain, a key or a value; default 64 KiB
}

// Calls bounds the calls in flight.
type Calls struct {
	Max int // total of all connections; default 4,096. More are rejected with RESOURCE_EXHAUSTED
}

// Connections bounds the connections of clients, and how long they may be idle or slow.
type Connections struct {
	Max        int    // gRPC connections; HTTP has the same bound, counted separately; default 10,000
	MaxStreams uint32 // concurrent calls on a gRPC connection; default 1,000

	// PeerShare is the part of Max for one peer (an address, or a /64 of IPv6) when all are in use: from 0 to 1, default
	// 0.5.
	PeerShare float64

	FirstCallTimeout time.Duration // longest time of a gRPC connection without a first call; default 1 min
	// longest time for a call's message to arrive, before the connection is closed; default 10 s
	MessageTimeout time.Duration
	// longest time in which a gRPC client reads nothing, before its connection is closed; default 10 s
	WriteTimeout time.Duration

	// MaxBytes bounds the memory for one gRPC connection: messages, headers, and answers that the client does not read.
	// Default 16 MiB. Shared.Budget bounds the memory for all connections.
	MaxBytes int64

	MaxAge      time.Duration // age at which a gRPC client is asked to reconnect; default 24 h
	MaxAgeGrace time.Duration // longest time that calls may continue on the old connection; default 1 h
}

// Metrics configures the metrics.
type Metrics struct {
	Handler      http.Handler        // answers /metrics; without it: not found
	ResponseTime prometheus.Observer // receives the duration of each gRPC call too, in seconds; may be nil
}

func (o *Options) setDefaults() {
	defaultTo(&o.Listen.GRPC, ":8081")
	defaultTo(&o.Listen.HTTP, ":8080")
	defaultTo(&o.Requests.MaxBytes, 4<<20)
	defaultTo(&o.Requests.MaxDescriptors, limiter.MaxDescriptors)
	defaultTo(&o.Requests.MaxEntries, limiter.MaxEntries)
	defaultTo(&o.Requests.MaxTextBytes, limiter.MaxTextBytes)
	defaultTo(&o.Calls.Max, 4_096)
	defaultTo(&o.QuotaStreamsMax, 1_000)
	defaultTo(&o.Connections.Max, 10_000)
	defaultTo(&o.Connections.MaxStreams, 1_000)
	defaultTo(&o.Connections.PeerShare, 0.5)
	defaultTo(&o.Connections.FirstCallTimeout, time.Minute)
	defaultTo(&o.Connections.MessageTimeout, 10*time.Second)
	defaultTo(&o.Connections.WriteTimeout, 10*time.Second)
	defaultTo(&o.Connections.MaxBytes, 16<<20)
	defaultTo(&o.Connections.MaxAge, 24*time.Hour)
	defaultTo(&o.Connections.MaxAgeGrace, time.Hour)
	if o.Reservations == nil {
		o.Reservations = reservation.NewSigner()
		o.Reservations.SetKey(reservation.NewKey())
	}
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
