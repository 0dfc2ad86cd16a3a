// Package backendtest is the suite that every store passes.
//
// Run tests a store: scripts with their outcomes and worked examples of the literature (testdata), exactness under
// concurrency, the property that the store agrees with the pure functions of package backend take by take (Model), the
// properties that say what each algorithm promises, and clearing counters. RunFull tests what a bounded store promises when
// it is full. A store's own test calls Run; what is special to a store is tested beside it.
//
// Time is virtual: a store under test must let the time given to Take decide. Every case uses keys of its own, so that
// stores may share a server.
//
// The scripts' outcomes are written by
//
//	go test ./internal/backend/memory -run Suite -update
//
// and read by a person before they are kept. The suite is for tests only.
package backendtest
