// Package ratelimit is ratelimitd as a library: it decides in process, without a service, with the same rules,
// algorithms and counters.
//
//	perKey, err := ratelimit.NewKeyed(ratelimit.PerMinute(100))
//	...
//	ok, err := perKey.Allow(ctx, apiKey)
//
// A Keyed is one limit for each ID. A Limiter has rules, for several keys, plans or limits:
//
//	limiter, err := ratelimit.New("api", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerMinute(100)})
//	...
//	defer limiter.Close()
//	ok, err := limiter.Allow(ctx, "api", "customer", id)
//
// New takes the rules of one domain and counts in the memory of this process. Open takes all options: rules in code and
// in files that are embedded in the program; with package rulefiles in a directory whose changes it follows; with
// package redisstore counters in Redis, which programs share with each other and with the service. A program links only
// those of the two that it imports.
//
// Allow answers yes or no. Decide also returns the remaining hits and when to try again. Wait blocks until a request
// may pass; goroutines that wait for the same limit wait in line. Reserve sets hits aside for a request whose cost is
// known only at its end. Acquire waits for a place under a limit of requests at the same time. The types of requests
// and answers come from package limits. This package names them too.
//
// A Limiter may be used by any number of goroutines. The package has no global state, and Close ends every goroutine
// that Open started. It listens on no port, serves no metrics and reads no environment; Options.Observer measures
// decisions, and package limitsprom is an Observer for Prometheus. In a test, testing/synctest sets the time of a
// limiter that counts in memory and follows no directory.
package ratelimit
