// Package client asks the service ratelimitd whether requests may pass, and behaves well when the service does not.
//
// New returns a Client with one connection for the whole program.
//
//	c, err := client.New("dns:///ratelimitd:8081", client.Options{})
//	...
//	defer c.Close()
//	ok, err := c.Allow(ctx, "api", "customer", id)
//
// Allow answers yes or no. Decide also returns the remaining hits and when to try again. Wait blocks until a request
// may pass. Reserve sets hits aside for a request whose cost is known only at its end. The types of requests and
// answers are in package limits.
//
// A call ends after Options.Timeout (20 ms by default), or earlier if its context does. If the service has not answered
// by then, the request passes; Options.OnFailure changes that. A decision's Source names its origin, and Stats counts
// the decisions by source. An error means that the request is invalid (limits.ErrInvalid) or that its context was
// canceled. Options.OnFailure never answers an invalid request, because it would stay unlimited until somebody noticed
// the mistake.
//
// Calls that are made while others are in flight share a message. Each of them still ends by its own deadline, and one
// that is denied or invalid does not affect the others. The message carries the trace context and the outgoing metadata
// of its first call.
//
// The client remembers requests that were denied and denies the same requests itself until they would pass. Such
// denials are not in a rule's counts or in a metric of the service. Once a second one call asks the service, so that
// refunds, overrides and resets take effect. If the service does not answer, the denial stays active until its time is
// over.
//
// A Client may be used by any number of goroutines. The package has no global state, and no goroutine of a client runs
// after Close. It does not count requests itself, even while the service is down: package ratelimit counts in process.
// It does not repeat a request to the service, because that could count twice. It logs nothing and exports no metrics:
// Options.Observer and Stats are for that.
package client
