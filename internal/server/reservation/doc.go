// Package reservation makes and reads the ids of reservations: what a later call needs to know, signed, so that a
// caller cannot invent or change it.
//
// A Signer holds a Key. Sign makes the text of an id from a nonce and bytes; Open checks it and returns both. A Key is
// one that the operator chose, one that the replicas of a Redis share (SharedKey), or a random one that only this
// replica knows.
//
// A Signer may be used by any number of goroutines. What the bytes mean is known to its caller: package server.
package reservation
