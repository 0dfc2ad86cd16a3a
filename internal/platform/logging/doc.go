// Package logging creates the service's logger, and prevents clients from flooding the log.
//
// New returns a logger that writes text, or JSON with the field and level names of envoyproxy/ratelimit, so that tools
// that read those logs keep working. No record is longer than MaxRecord. A Level can be changed while the service runs.
// A Sampler picks a few of many events. Shorten cuts texts that clients sent.
//
// Loggers, levels and samplers may be used concurrently.
//
// The package does not decide which events are logged, and it does not look for secrets: code that holds one must not
// log it.
package logging
