// Package ratelimit decides in process, without a service: the same rules, algorithms and counters as ratelimitd, as a library.
//
// Open reads a folder of rule files and returns a Limiter. It follows changes of the files. Counters are in the memory of this
// process or in Redis. Processes with the same Redis and the same key prefix share counters: other programs with this package,
// and the service.
//
//	l, err := ratelimit.Open(ratelimit.Options{Rules: "limits"})
//	...
//	defer l.Close()
//	ok, err := l.Allow(ctx, "api", "customer", id)
//
// Allow answers yes or no. Decide also returns what is left and when to try again. Wait blocks until a request may pass. Reserve sets
// hits aside for a request whose cost is known only at its end. The types of requests and answers come from package limits. This
// package names them too, so that one import is enough.
//
// A Limiter may be used by any number of goroutines. The package has no global state, and Close ends every goroutine that Open
// began. It listens on no port, serves no metrics and reads no environment; give Options.Observer to measure decisions. The client
// library of Redis logs failed connections to standard error, unless the program calls its SetLogger.
package ratelimit
