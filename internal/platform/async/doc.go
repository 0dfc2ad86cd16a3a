// Package async is for functions that end with a callback instead of a return: a Waiter waits for the callback, Go does
// in a goroutine what waits, and Recover turns a panic into a PanicError, which a callback can pass on to the goroutine
// that asked.
//
// It knows nothing of what the functions do. A Waiter is for one goroutine that waits; its Done may be called from any
// other.
package async
