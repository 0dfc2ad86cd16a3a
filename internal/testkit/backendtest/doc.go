// Package backendtest is the suite that every store passes.
//
// Run tests a store:
//
//   - scripts with their outcomes, and worked examples from the literature (testdata)
//   - exactness under concurrency
//   - that the store agrees with the pure functions of package backend take by take (Model)
//   - the properties that each algorithm promises
//   - clearing counters
//
// RunReservations tests reservations: scripts, random steps that are compared with plain arithmetic, and exactness
// under concurrency. RunFull tests the promises of a bounded store that is full. The test of each store calls Run.
// Features of a single store are tested in that store's package.
//
// Time is virtual: a store under test must use only the time given to Start. Every case uses its own keys, so that
// stores may share a server.
//
// The outcomes in the scripts are written by
//
//	go test ./internal/backend/memory -run Suite -update
//
// A person reads them before they are kept. The suite is for tests only.
package backendtest
