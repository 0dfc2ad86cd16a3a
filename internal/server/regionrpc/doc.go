// Package regionrpc carries what replicas of two regions say to each other: gRPC with certificates on both sides, on a
// port of its own.
//
// Peers asks other regions, and Server answers them with a store. Each side knows the region of the other one from its
// certificate (RegionOf), never from a message: a region can only speak for itself. What a peer may send is bounded
// before it reaches the store. Methods may be called concurrently.
//
// The package does not decide anything: packages regions and region do.
package regionrpc
