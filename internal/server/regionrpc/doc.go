// Package regionrpc carries queries between replicas of different regions: gRPC with certificates on both sides, on a
// separate port.
//
// Peers asks other regions, and Server answers them with a store. Each side takes the region of the other one from its
// certificate (RegionOf), never from a message: a region can only speak for itself. Messages are bounded before they
// reach the store. Methods may be called concurrently.
//
// The package does not decide anything: package regions does.
package regionrpc
