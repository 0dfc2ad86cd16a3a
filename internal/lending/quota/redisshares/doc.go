// Package redisshares divides limits among replicas, in Redis. Each replica holds a share of a limit for a while, like
// a lease, and hands it out to its clients.
//
// Shares.Renew asks for shares of many limits. Redis keeps a hash for each limit and decides with one script, so that
// the shares of all replicas together never exceed the limit. Shares expire by Redis' clock; the clocks of the replicas
// do not matter. The share of a replica that is gone becomes free when it expires. Its clients can use it earlier: they
// transfer it to another replica (Ask.ClaimRate). A replica that shuts down immediately returns the part that no client
// holds (Ask.Ends). A claimed part stays in the field of the claiming replica until that replica has the answer, so a
// lost answer loses nothing. A question that arrives after a later one of the same replica changes nothing.
//
// Any number of goroutines may use Shares. Package quota defines the meaning of a share for clients.
package redisshares
