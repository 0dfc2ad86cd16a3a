// Package servicetest is for tests that use a whole service, or a whole server of it: it starts the service as a
// process, waits for lines of its log, sends it requests, and reads its counters in Redis.
//
// A Process is a running program; Start starts the service on free ports and returns when it listens. Each program that
// the test starts ends with the test. A Log holds the output of a program; any goroutine may write and read it. Serve
// runs a server inside the test process. A Relay is one address in front of several processes. Every wait has a bound:
// when it is reached, the test fails with the log.
//
// The package is for tests only. It does not build the service: the test names the program. It does not start Redis
// either: package redistest does.
package servicetest
