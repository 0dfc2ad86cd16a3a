//go:build race

package build

// raced says that the tests run with the race detector: then the service is built with it too.
const raced = true
