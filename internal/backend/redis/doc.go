// Package redis keeps counters in Redis, where any number of replicas share them.
//
// Store is the store. It sends requests that are in flight together in one call (queue, schedule). A call runs a script
// of package scripts, which decides in one atomic step which takes add their hits (scriptCall). On a cluster a request
// is split by slot, and each node has its own queue: a node that hangs delays only its own requests. Pair adds a second
// Redis for limits per second. Store.Heartbeat counts the replicas that share a Redis. Package redisconn makes the
// client.
//
// A single server has lanes (package redisconn): two of the flushes in flight use them instead of the client. A caller
// that waits in the goroutine of Start, and finds nothing in flight, sends its request on a lane itself (settleHere).
//
// The address of a single Redis may lead to several servers, through a proxy, or to a cluster. The store detects this
// (Layout), and until then it sends the keys of one counter in each call. Behind a proxy a request is split by counter,
// as on a cluster by slot, and the calls for the parts share a pipeline. A proxy sends a script to the server of its
// first key, so that key is the counter's.
//
// A Store may be used by any number of goroutines.
//
// The scripts return the states that they saw and their time. The store then runs backend.Settle on those states to
// find the outcomes, as the memory store does. So both stores give the same answers to the microsecond, and the scripts
// stay small. There is one script for a single take of each algorithm, and one for each mix of algorithms in a request
// with several takes. A server gets only the scripts that are used.
//
// Reservations are in two keys next to their counter (reservations). A call with takes that concern them runs a
// separate kind of script. The script settles reservations that have expired, reads the counters again, and then
// decides the takes: so backend.Settle can continue from the states and the reservations that the script returns.
//
// # Clock
//
// Redis' own clock decides, so that replicas with wrong clocks agree on the window. Some servers do not give scripts
// the time. The first Ping or Take detects this, and from then on the caller's time decides, as with
// Options.CallerClock. Tests use that option too, for virtual time. With the callers' times, counters live a minute
// longer than necessary, because the clocks of replicas differ.
//
// The bounds of calendar windows are computed here, for an estimate of Redis' time. If the script runs in another
// window, it does nothing and returns its time, and is run again with the right bounds.
//
// If a clock goes back, the newer window stays. This holds for a fixed window that is up to 255 windows ahead; a
// counter that is further ahead starts again. Windows are numbered modulo 4096. So a jump of virtual time by 3841 to
// 4095 windows (or that plus a multiple of 4096) would look like a clock that went back. Keys do not live that long, so
// it cannot happen in real time. The other algorithms store more digits of their time, or all.
//
// # Keys of envoyproxy/ratelimit
//
// With Options.LyftKeys a key may have the format of envoyproxy/ratelimit (descriptor.KeysLyft), which contains the
// start of its window. The start is added here, for an estimate of Redis' time. If the estimate is wrong, the script
// does nothing, as with a calendar. On a cluster such a key is in a different slot in each window, so requests that
// shared a call may have to be sent one by one in the second attempt.
//
// # Time
//
// A call to Redis has the store's timeout (Options.Timeout), and each of its callers leaves a moment before its
// deadline. So a caller with little time does not make others fail and does not close a connection, and a late answer
// still shows that Redis works. After a timeout the socket is read once more before the call fails, because the process
// may have had no CPU when the answer arrived.
//
// # Errors
//
// A call that was sent and not answered may have counted. It is never sent again, regardless of the client's settings,
// because that could count twice. A call is sent again only after an answer which shows that nothing counted, such as
// NOSCRIPT, and after a cluster's redirection. If a call fails in that way because some of its requests concern
// reservations, the others are sent again together, and those one by one.
//
// A value under one of our keys may not be a state: another type or form, or a window ahead that never expires. Such a
// value is treated as empty, and the next hit that is counted replaces it, so it does not block a limit forever.
//
// The package does not apply on_error: the limiter does.
package redis
