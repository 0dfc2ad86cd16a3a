// Package limits contains the types that packages ratelimit and client share: requests, decisions and reservations.
// Middleware takes a Decider, so it works with either package.
//
// It decides nothing and imports only the standard library.
package limits
