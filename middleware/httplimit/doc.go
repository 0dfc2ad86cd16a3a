// Package httplimit limits the requests of net/http servers and clients.
//
// New returns middleware for a server: it builds a limits.Request from each HTTP request, asks a limits.Decider, and
// calls the next handler or answers 429. Transport is for clients: it repeats requests that a server denied, after the
// time in the denial, and asks a Decider before each request if it has one. A ratelimit.Limiter (which decides in this
// process) and a client.Client (which asks the service) are Deciders.
//
//	limit := httplimit.New(limiter, httplimit.Options{
//		Domain: "api",
//		Descriptors: []httplimit.Descriptor{
//			{httplimit.Header("X-Api-Key", "customer").Or("none"), httplimit.Pattern("route").Or("none")},
//			{httplimit.RemoteAddress("address")},
//		},
//	})
//	http.ListenAndServe(":8080", limit(mux))
//
// # Values
//
// A Key builds one entry of a descriptor. A value that is missing or empty leaves its descriptor out, as in Envoy, and
// a request without any descriptor is not limited. So use Or to give a value to each key that a client can leave out,
// or limit the client's address too.
//
// A value that is longer than 256 bytes or not UTF-8 becomes its hash, so that clients cannot fill the store with long
// values, and long tokens with the same prefix have separate counters.
//
// # Requests whose cost is known later
//
// With Options.Actual, the amount that Options.Cost returns is reserved before the handler runs, and the amount that
// Actual returns is charged afterwards. The charge is made before the response ends. If the handler panics before it
// writes anything, nothing is charged. The rules need `reservations`, with a ttl that is longer than the longest
// response.
package httplimit
