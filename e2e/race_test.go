//go:build race

package e2e

// raced says that the tests run with the race detector: then the service is built with it too.
const raced = true
