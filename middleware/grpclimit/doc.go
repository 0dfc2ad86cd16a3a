// Package grpclimit limits the calls of gRPC servers and clients, as interceptors of google.golang.org/grpc.
//
// UnaryServerInterceptor and StreamServerInterceptor build a limits.Request from each call, ask a limits.Decider, and
// call the handler or answer RESOURCE_EXHAUSTED with a google.rpc.RetryInfo. UnaryClientInterceptor and
// StreamClientInterceptor repeat calls that a server has denied in this way, after the time in the denial, and ask a
// Decider before each call if they have one. A ratelimit.Limiter (which decides in this process) and a client.Client
// (which asks the service) are Deciders.
//
//	o := grpclimit.Options{Domain: "api", Descriptors: []grpclimit.Descriptor{
//		{grpclimit.Metadata("x-api-key", "customer").Or("none"), grpclimit.Method("method")},
//		{grpclimit.PeerAddress("address")},
//	}}
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, o)),
//		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter, o)),
//	)
//
// A stream is limited when it starts. Its messages are not limited, but with Options.Actual it can be charged for them
// at its end.
//
// # Values
//
// A Key builds one entry of a descriptor. A value that is missing or empty leaves its descriptor out, as in Envoy, and
// a call without any descriptor is not limited. So use Or to give a value to each key that a client can leave out, or
// limit the client's address too. A value that is longer than 256 bytes or not UTF-8 becomes its hash.
//
// # Calls whose cost is known later
//
// With Options.Actual, the amount that Options.Cost returns is reserved before the handler runs, and the amount that
// Actual returns is charged afterwards. The charge is made before the call ends. If the handler panics before it sends
// anything, nothing is charged. The rules need `reservations`, with a ttl that is longer than the longest call.
package grpclimit
