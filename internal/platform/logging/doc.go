// Package logging makes the service's logger, and keeps what callers send from flooding the log.
//
// New makes a logger that writes text, or JSON with the field and level names of envoyproxy/ratelimit, so that tools
// that read those logs keep working. No record is longer than MaxRecord. A Level can be changed while the service runs.
// A Sampler picks a few of many events. Shorten and Entries cut text that callers sent.
//
// Loggers, levels and samplers may be used concurrently.
//
// The package does not decide what is logged, and it does not look for secrets: a caller that holds one must not log
// it.
package logging
