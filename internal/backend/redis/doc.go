// Package redis keeps counters in Redis, where any number of processes share them.
//
// It owns the store (store.go, reset.go), the round trips that requests in flight share (queue.go, queues.go, pending.go,
// flush.go), what goes to the script and comes back (call.go), how a counter is kept there (state.go) and in which slot of a cluster (slot.go),
// whether anybody answers (ping.go), what is logged of calls that fail (losses.go), how many processes share a Redis (census.go), and a
// second Redis for limits per second (per_second.go). Package redisconn makes the client. A Store may be used by any number of goroutines.
//
// The scripts (package scripts) decide which takes add their hits, in one atomic step, and answer with the states they
// saw and their time. The outcomes are found by running backend.Settle on those states: the memory store does the same,
// so that both answer alike to the microsecond, and the scripts stay small. There is one script for a single take of
// each algorithm, and one for every mix of algorithms in a request of several; a server gets those that are used.
//
// # Clock
//
// Redis' own clock decides, so that replicas with wrong clocks agree on the window. Some servers do not tell scripts the
// time: the first Ping or Take finds out, and from then on the time that a caller gives decides, as it does with
// Options.CallerClock, which is for tests in virtual time too. Counters then live a minute longer than they have to,
// because callers' clocks differ.
//
// The bounds of a calendar's windows are computed here, for the time that Redis' clock is believed to show: a script
// that finds itself in another window does nothing and says what time it is, and is asked again.
//
// A clock may go back, and the newer window still stays. A fixed window is believed to be up to 255 windows ahead;
// beyond that a counter starts anew. Since windows are numbered modulo 4096, a jump of virtual time to 3841 to 4095
// windows later (or that and a multiple of 4096) would be taken for a clock that went back: keys live less long than
// that, so real time never gets there. The other algorithms keep more digits of their time, or all.
//
// # Keys of others
//
// With Options.LyftKeys a key may be one of envoyproxy/ratelimit's (descriptor.KeysLyft), which has the start of its window in it.
// It is completed here, for the time that Redis' clock is believed to show; the script does nothing if that is wrong,
// as with a calendar. On a cluster such a key is in another slot in each window, so that requests which went together may
// have to go one by one the second time.
//
// # Time
//
// A call to Redis has the time of the store (Options.Timeout), and each of its callers leaves a moment before its own deadline. So a caller
// with little time fails no other caller's call and closes no connection, and a late answer still shows that Redis is well. Before a
// timeout is believed the socket is read once more: the process may have had no CPU when the answer came.
//
// # Errors
//
// A call that was sent and not answered may have counted. It is never sent again, whatever the client's settings are:
// sending it twice could count twice. Only a NOSCRIPT answer (nothing ran) and a
// cluster's redirection are followed.
//
// A value under one of our keys that is no state of ours (another type or form, a window ahead that never expires)
// counts as nothing, and the next hit that is counted replaces it: somebody else's mistake does not block a limit for
// ever.
//
// It does not answer by on_error: that is the limiter's.
package redis
