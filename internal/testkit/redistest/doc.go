// Package redistest starts real redis-server processes for tests: a single server, a primary with replicas and
// sentinels, or a cluster. They run without protection, with a password, or with TLS and certificates made for the
// test.
//
// The package owns its processes: ports, unix sockets, directories, and their end with the test. A test can kill, pause
// and restart each process, and wait until the rest of a topology has reacted. Every wait has a bound. When it is
// reached, the test fails, and its message names the awaited event and the last state.
//
// The methods belong to the goroutine of the test. Any number of servers may run at the same time.
//
// On a machine without redis-server the tests that need it are skipped with the words NOT RUN, or fail if the variable
// CI is set. The package is for tests only. It does not imitate Redis: it starts the real one.
package redistest
