// Package redistest starts real redis-server processes for tests: one (server.go), a primary with replicas that
// sentinels watch over (sentinel.go), a cluster (cluster.go, migration.go); plain, with a password, or with TLS and
// certificates of its own (tls.go); and a bad network before one of them (proxy.go).
//
// It owns each process: its port (port.go) and unix socket, its folder, and its end with the test. Processes can be
// killed, paused and started again one by one, and what the rest of a topology does then can be waited for; every wait is
// bounded, and fails the test with what was waited for and what was seen last.
//
// The methods belong to the goroutine of the test; any number of servers may run side by side.
//
// A machine without redis-server fails the tests that need it: a suite that skips them would pass without having shown
// anything. This package is for tests only, and is no double of Redis: what it starts is the real thing.
package redistest
