// Package redisconn reaches a Redis: one server, a primary that sentinels watch over, or a cluster.
//
// Dial reads settings as an operator writes them and returns a client of go-redis. The client does on its own only the
// following, which stores rely on:
//
//   - It never sends a command again that may have been executed. Only a NOSCRIPT answer (nothing ran) and a cluster's
//     redirections lead to another attempt.
//   - A connection is made with TLS and login in the background, within the connect timeout. A call with less time does
//     not wait for it; the connection serves the next call.
//   - A breaker per node makes calls fail immediately while the node sends nothing. A node that is slow but answers
//     keeps its breaker closed.
//   - Credentials and certificates may change on disk: new connections use the new ones, open connections continue.
//   - A server's answers have bounds, which the client library does not have: lengths, elements, depth, lines. If an
//     answer exceeds them, the connection fails.
//   - No error and no log line contains a password, or more than 512 bytes of a server's text.
//
// Lanes are connections to a single server in addition to the client's pool, for calls that need nothing of the client:
// they cost less.
//
// Ping asks whether Redis answers, for health checks. Connections counts the connections of a client, for metrics.
//
// A client may be used by any number of goroutines. The package knows nothing about counters: package backend/redis
// does.
package redisconn
