// Package reservation creates and opens the ids of reservations. An id contains the data for later calls, signed, so
// that a client cannot invent or change it.
//
// A Signer holds a Key. Sign encodes an id from a nonce and bytes; Open checks it and returns both. A Key is chosen by
// the operator, shared by the replicas of a Redis (SharedKey), or random and known only to this replica.
//
// Any number of goroutines may use a Signer. Package server defines the meaning of the bytes.
package reservation
