// Package conform checks whether a service answers ShouldRateLimit as envoyproxy/ratelimit does, and keeps its limits.
// The service may be any: the package knows its address and where it reads rule files.
//
// Cases are requests with their expected answers. Cases of the level protocol are written by hand, each with one
// sentence; cases of the level recorded are answers of envoyproxy/ratelimit to random requests under random rules;
// cases of the level exact count what many connections get together, and cases of the level field do what users of some
// service have reported. These two can be written in limitador's form as well.
//
// Run writes a Report, as text, JSON or JUnit XML. All functions may be called concurrently. The package does not start
// or configure the service; it runs the commands that its user gives it.
package conform
