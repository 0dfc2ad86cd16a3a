//go:build race

package build

// raced is whether the tests run with the race detector. Then the service is built with it too.
const raced = true
