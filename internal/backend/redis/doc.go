// Package redis keeps counters in Redis, where any number of processes share them.
//
// Store is the store. It sends requests that are in flight together in one call (queue, schedule). A call runs a script of package
// scripts, which decides in one atomic step which takes add their hits (scriptCall). On a cluster a request is split by slot, and each
// node has a queue of its own: a node that hangs delays only its own requests. Pair is a second Redis for limits per second. ReplicaCounter counts
// the processes that share a Redis. Package redisconn makes the client.
//
// A Store may be used by any number of goroutines.
//
// The scripts answer with the states that they saw and their time. The outcomes are found by running backend.Settle on those
// states, as the memory store does. So both stores give the same answers to the microsecond, and the scripts stay small. There is one
// script for a single take of each algorithm, and one for every mix of algorithms in a request of several; a server gets those
// that are used.
//
// # Clock
//
// Redis' own clock decides, so that replicas with wrong clocks agree on the window. Some servers do not give scripts the
// time: the first Ping or Take finds out, and from then on the caller's time decides, as it does with
// Options.CallerClock, which also serves tests in virtual time. Counters then live a minute longer than they have to,
// because callers' clocks differ.
//
// The bounds of a calendar's windows are computed here, for the time that Redis' clock is believed to show. A script
// that finds itself in another window does nothing and answers with its time, and is run again.
//
// A clock may go back, and the newer window still stays. A fixed window is believed to be up to 255 windows ahead;
// beyond that a counter starts anew. Since windows are numbered modulo 4096, a jump of virtual time to 3841 to 4095
// windows later (or that and a multiple of 4096) would look like a clock that went back. Keys live less long than
// that, so real time never gets there. The other algorithms keep more digits of their time, or all.
//
// # Keys of envoyproxy/ratelimit
//
// With Options.LyftKeys a key may have the format of envoyproxy/ratelimit (descriptor.KeysLyft), which contains the start of its window.
// The start is added here, for the time that Redis' clock is believed to show; the script does nothing if that is wrong,
// as with a calendar. On a cluster such a key is in another slot in each window, so requests that went together may
// have to go one by one in the second attempt.
//
// # Time
//
// A call to Redis has the store's timeout (Options.Timeout), and each of its callers leaves a moment before its own deadline. So a caller
// with little time fails no other caller's call and closes no connection, and a late answer still shows that Redis is well. The socket is
// read once more before a timeout is believed: the process may have had no CPU when the answer came.
//
// # Errors
//
// A call that was sent and not answered may have counted. It is never sent again, whatever the client's settings are:
// that could count twice. Only a NOSCRIPT answer (nothing ran) and a cluster's redirection are followed.
//
// A value under one of our keys that is not a state of ours (another type or form, or a window ahead that never expires)
// counts as nothing, and the next hit that is counted replaces it: a foreign value does not block a limit for ever.
//
// The package does not answer by on_error: the limiter does.
package redis
