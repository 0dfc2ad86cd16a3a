// Package regions counts limits that hold across regions. Store is a store in front of another one: takes under limits without
// Regions go straight to the other store. A limit with a home is counted there, by the arithmetic of package
// region, and in the records of backend.Records.
//
// In the home's region a take is a step on the counter's record. In another region, mode home asks the home for each take. Mode escrow
// takes from the region's account, another record. An account that has permits is a counter whose limit is what it holds: takes are sent
// with those of all other limits (offer.go), and cost as much. An account is changed by steps only to ask the home and to take in its
// answers. A take that finds no permits waits for the answer until a moment before its caller's deadline, then it fails, and on_error
// decides. The answer arrives behind it and serves the next take.
// A bucket in escrow is divided: each region, also the home's, takes from its part (part), a third record.
//
// Mode eventual has no home and no record: each region counts on its own, and lowers its limit by what the others say (tally.go).
//
// Replicas of different regions talk to each other through Peers: a Store asks with Exchange and Consent, and answers with its
// methods Answer and Consent. A Store may be used by any number of goroutines.
//
// # Where the time comes from
//
// A step is computed in Go, on the value that was seen last, and written by a script that compares (record). Its time is one that the
// Redis' clock is known to have reached, so it is early by a moment: by half a trip, and by the drift since the last reading. That is
// safe where time frees something, as a grant that expires or a hit that leaves a window. Where time ends something, the script must
// not write later than that: the end of the grants that a take has used, of the window that it counted in, of the role of the home.
// Two steps need a time that is not early, and read the clock first: what a home grants is valid from when the question was sent, and a
// new home waits for what was granted before it was confirmed.
//
// Hits in a sliding log or in a bucket count from the time of the computation, so they leave it up to 50 ms early.
//
// # What it does not do
//
// Denied hits count nowhere, and no denial is cached: each take asks Redis, together with others that wait for the same record. Rules that
// combine regions with reservations, penalties or all-or-nothing admission are rejected when they are loaded. If takes of several counters
// are settled as one and some are denied, the others are given back, as on a cluster (backend.Split). Hits that are given back while a
// window ends may free a hit of the next window.
//
// The home knows what a region has counted before its rule got a home only for its own region.
package regions
