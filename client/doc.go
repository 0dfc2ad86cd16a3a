// Package client asks the ratelimitd service whether requests may pass, and behaves well while it does.
//
// New returns a Client, which holds one connection. Decide sends a request and returns within Options.Timeout, whatever happens to
// the service: Options.OnFailure says what the answer is then. Allow and Wait are shorter forms. Reserve is for requests whose cost
// is known only when they are over. The types of requests and answers are those of package limits.
//
// The client remembers denials: until the time at which a refused request would pass, the same request is refused without a call. At
// least once a second one such request is sent all the same, so that refunds, overrides and resets show. Requests that are made at
// the same time share a call. Each is decided as if it had come alone.
//
// A Client may be used by any number of goroutines. The package has no global state, and Close ends every goroutine that New began.
// It does not count by itself: a client that cannot reach the service enforces no limit (see package ratelimit for that). It does
// not send the metadata of a caller's context, because calls are shared.
package client
