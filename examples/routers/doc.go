// Package routers limits the requests of services that are not made with http.ServeMux: with chi, gin, echo or connect.
// It also records decisions with OpenTelemetry. Each file is complete, so copy the one that you need.
//
// It is a separate module, so that ratelimitd does not depend on these libraries.
package routers
