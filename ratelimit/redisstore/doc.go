// Package redisstore counts in Redis for a limiter of package ratelimit. Programs with the same Redis and the same key
// prefix share counters with each other and with the service.
//
//	limiter, err := ratelimit.Open(ctx, ratelimit.Options{
//		Domains: domains,
//		Store:   redisstore.New(redisstore.Options{URL: "redis:6379"}),
//	})
//
// The client library of Redis logs failed connections to standard error, unless the program calls its SetLogger.
package redisstore
