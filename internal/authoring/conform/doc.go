// Package conform checks whether a service answers ShouldRateLimit as envoyproxy/ratelimit does, and keeps its limits.
// It works with any service: it only needs its address and the directory of its rule files.
//
// cases of the level exact count the requests that many connections pass together, and cases of the level field repeat
// problems reported by users of some service. These two can be written in limitador's form as well.
//
// Run writes a Report, as text, JSON or JUnit XML. All functions may be called concurrently. The package does not start
// or configure the service; it runs the commands that its user gives it.
package conform
