// Package redisshares divides limits among replicas, in Redis: each replica holds a share of a limit for a while, like
// a lease, and hands it out to its clients.
//
// Shares.Renew asks for shares of many limits. Redis keeps a hash for each limit and decides with one script, so that
// the shares of all replicas together never exceed the limit. Redis' clock says when a share expires; the clocks of the
// replicas do not matter. The share of a replica that is gone is free when it expires, or earlier for its clients: they
// bring it along to another replica (Ask.ClaimRate). A replica that shuts down gives back at once what no client holds
// (Ask.Ends). What is taken for a claim stays in the field of the claiming replica until that replica has the answer,
// so a lost answer loses nothing. A question that arrives after a later one of the same replica changes nothing.
//
// Shares may be used by any number of goroutines. What a share means for clients is decided by package quota.
package redisshares
