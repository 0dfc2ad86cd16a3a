// Package async is for functions that end with a callback instead of a return: a Waiter waits for the callback, Go runs
// a blocking function on a goroutine, and Recover turns a panic into a PanicError, which a callback can pass on to the
// goroutine that asked.
//
// It is independent of the functions' work. A Waiter is for one goroutine that waits; its Done may be called from any
// other.
package async
