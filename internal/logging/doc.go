// Package logging makes the service's logger.
//
// It owns how a line looks (logging.go): text, or JSON with the field names and the level names of envoyproxy/ratelimit,
// so that what reads those logs goes on reading; and the level (level.go), which can be changed while the service runs.
// Loggers and levels may be used by any goroutine.
//
// It does not decide what is logged, and it does not look for secrets in what it is given: who holds one must not log it.
package logging
