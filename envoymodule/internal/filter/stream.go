package filter

import "github.com/ratelimitd/ratelimitd/internal/limiter"

// Stream is a request as Envoy shows it. A text that it returns belongs to Envoy, and is valid only until the present
// hook ends.
type Stream interface {
	Header(name string, index int) (value string, count int) // count is how many values the header has, 0 if it is absent
	RemoteAddress() (string, bool)                           // address and port
	Cluster() (string, bool)                                 // cluster of the route; false without a route to a cluster
	Metadata(from Source, space, key string) (string, bool)
	MetadataNumber(from Source, space, key string) (float64, bool)

	Count(c Counter)
	SetMetadata(space string, message []byte) // a serialized google.protobuf.Struct
	Flag(text string)                         // sets a flag for %CUSTOM_FLAGS% of access logs
	AddToRequest(headers []limiter.Header)
	AddToResponse(headers []limiter.Header)
	Reply(status uint32, headers []limiter.Header, details string)

	Waker() Waker // resumes a request that waits
}

// Source is where metadata is, with Envoy's number.
type Source uint32

// The sources.
const (
	DynamicMetadata Source = iota
	RouteMetadata
)

// Waker makes Envoy call the hook that resumes a request, on the worker of the request. Wake does nothing if the
// request has ended. Free is called once, last.
type Waker interface {
	Wake()
	Free()
}

// Counter is one of Envoy's counters.
type Counter uintptr

// Host is the Envoy that loads a configuration.
type Host interface {
	Concurrency() int
	Validating() bool // nothing will be answered: connect to nothing
	DefineCounter(name string) (Counter, error)
}
