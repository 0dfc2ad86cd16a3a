// Package redistest starts real redis-server processes for tests.
//
// It owns one process per Server (server.go): its free port and unix socket, its folder, and its end with the test.
// The methods of one Server belong to one goroutine at a time; any number of servers may run side by side.
//
// A machine without redis-server fails the tests that need it: a suite that skips them would pass without having shown
// anything. This package is for tests only, and is no double of Redis: what it starts is the real thing.
package redistest
