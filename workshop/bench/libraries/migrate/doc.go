// Package migrate has the same jobs in x/time/rate, ulule/limiter or redis_rate and in package ratelimit, for
// docs/do/from-go-libraries.md. Its tests do each job in both ways, and compare the page with these lines.
package migrate
