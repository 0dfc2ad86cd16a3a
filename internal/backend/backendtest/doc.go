// Package backendtest is the suite that every store passes.
//
// It owns Run (suite.go), the scripts in testdata and how they are read (script.go, limit.go), the worked examples of
// the literature in testdata/algorithms.json (vectors.go), the tests of exactness under concurrency (concurrent.go),
// the property that a store agrees with the pure functions of package backend, take by take (model.go, draw.go), and
// the properties that say what each algorithm promises (bounds.go, tight.go), clearing counters (reset.go), and what a bounded
// store promises when it is full (full.go, which has a Run of its own). A store's
// own test calls Run; what is special to a store is tested beside it.
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
