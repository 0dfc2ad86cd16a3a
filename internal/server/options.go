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
	handshakeTimeout = 5 * time.Second // until a connection must speak the protocol

	pingAfter   = 30 * time.Second // without a frame from a client
	pingTimeout = 10 * time.Second // for its answer; then the connection is closed

	// Envoy pings as often as its connection_keepalive says, also without calls, and people write 1 s and less there. A
	// client that pings more often than this is disconnected (GOAWAY ENHANCE_YOUR_CALM). grpc-go's default is 5 min.
	leastPingInterval = 10 * time.Millisecond
)

// Options are what a Server is made of. Only Decider is required.
type Options struct {
	Decider Decider
	Shared  *endpoint.Shared // what all ports of the process share; nil: defaults

	Listen      Listen
	Requests    Requests
	Calls       Calls
	Connections Connections
	Metrics     Metrics
	Tracer      Tracer // records decisions; nil: off

	// Quota answers the rate limit quota service; nil: the service is UNIMPLEMENTED. QuotaStreamsMax is how many streams
	// may be open; default 1,000. More are rejected with RESOURCE_EXHAUSTED.
	Quota           QuotaStreams
	QuotaStreamsMax int

	// Reflection answers the gRPC reflection service. A question of 50 bytes makes an answer of 50 KB, so it is off where
	// callers are not trusted.
	Reflection bool

	// Reservations signs the ids of reservations; nil: with a random key, so that no other replica accepts them.
	Reservations *reservation.Signer

	DrainDelay time.Duration // from red health to rejecting new calls; default 0
}

// QuotaStreams hands out shares of limits to the clients of the rate limit quota service.
type QuotaStreams interface {
	// Open returns the stream of a client with that address.
	Open(client string) QuotaStream
}

// QuotaStream is the stream of one client. Report is called by one goroutine; Next and Sent are called by another one.
type QuotaStream interface {
	// Report takes in what a client reports. It must not wait for anything, because other streams may wait for it. The
	// slice all and the slices inside it are reused when Report returns. A string inside them keeps the whole message in
	// memory, so clone each string that is kept. The domain is the same string each time, and may be kept.
	Report(now time.Time, domain string, all []assigner.Usage)

	// Next waits until there is something to send, and appends it to all. Its error is the error of ctx.
	Next(ctx context.Context, all []assigner.Action) ([]assigner.Action, error)

	// Sent is called when what Next returned has been passed to the transport.
	Sent(now time.Time)

	// Close is called once, when none of the other methods is running, and none is called any more.
	Close(now time.Time)
}

// Listen says where callers connect.
type Listen struct {
	GRPC string // host:port; default ":8081"
	HTTP string // host:port of /json, probes and metrics; default ":8080"

	// Socket is the path of a unix socket that replaces GRPC. A leading @ makes it abstract. SocketMode are the
	// permissions of its file; 0 leaves them to the umask.
	Socket     string
	SocketMode fs.FileMode

	Credentials credentials.TransportCredentials // of gRPC; nil: plain text
}

// Requests bounds one request. The bounds hold while it is decoded, before memory is spent: two bytes on the wire make
// an entry of 32 bytes, and {} in JSON makes one of a hundred.
type Requests struct {
	MaxBytes       int // of the message; default 4 MiB
	MaxDescriptors int // per request; default 256
	MaxEntries     int // per descriptor; default 256
	MaxTextBytes   int // of a domain, a key or a value; default 64 KiB
}

// Calls bounds the calls in flight.
type Calls struct {
	Max int // on all connections; default 4,096. More are rejected with RESOURCE_EXHAUSTED
}

// Connections bounds the connections of callers, and how long they may be idle or slow.
type Connections struct {
	Max        int    // of gRPC; HTTP has the same bound, counted separately; default 10,000
	MaxStreams uint32 // calls at once on one gRPC connection; default 1,000

	// PeerShare is the part of Max that one peer (an address, or a /64 of IPv6) keeps when all are in use: from 0 to 1,
	// default 0.5.
	PeerShare float64

	FirstCallTimeout time.Duration // a gRPC connection without a call is closed after this time; default 1 min
	MessageTimeout   time.Duration // a connection is closed when a call's message takes longer to arrive; default 10 s
	WriteTimeout     time.Duration // a gRPC connection is closed when its client reads nothing for this time; default 10 s

	// MaxBytes bounds what is held for one gRPC connection: messages, headers, and answers that the client does not take.
	// Default 16 MiB. Shared.Budget bounds what is held for all.
	MaxBytes int64

	MaxAge      time.Duration // a gRPC client is asked to reconnect after this time; default 24 h
	MaxAgeGrace time.Duration // how long calls on the old connection may still run after that; default 1 h
}

// Metrics says what is measured of calls, and what /metrics shows.
type Metrics struct {
	Handler      http.Handler        // answers /metrics; nil: not found
	ResponseTime prometheus.Observer // gets the duration of each gRPC call too, in seconds; may be nil
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
