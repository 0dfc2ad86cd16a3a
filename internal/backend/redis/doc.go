// Package redis keeps counters in Redis, where any number of processes share them.
//
// It owns the store (store.go: one EVALSHA per request), what goes to the script and comes back (call.go), how a
// counter is kept there (state.go), and how a connection is made (dial.go). A Store may be used by any number of
// goroutines.
//
// The script (package scripts) decides which takes add their hits, in one atomic step, and answers with the states it
// saw and its time. The outcomes are found by running backend.Settle on those states: the memory store does the same,
// so that both answer alike to the microsecond, and the script stays small.
//
// # Clock
//
// Redis' own clock decides, so that replicas with wrong clocks agree on the window. With Options.CallerClock the time
// that a caller gives decides instead: for servers that refuse TIME in scripts, and for tests in virtual time. Counters
// then live a minute longer than their window, because callers' clocks differ.
//
// A clock may go back by 255 windows, and the newer window still stays; beyond that a counter starts anew. Since windows
// are numbered modulo 4096, a jump of virtual time to 3841 to 4095 windows later (or that and a multiple of 4096) would
// be taken for a clock that went back: keys live less long than that, so real time never gets there.
//
// # Errors
//
// A call that was sent and not answered may have counted. It is never sent again, whatever the client's settings are:
// sending it twice could count twice, and the caller's time is up anyway. Only a NOSCRIPT answer (nothing ran) and a
// cluster's redirection are followed.
//
// A value under one of our keys that is no state of ours (another type, no integer, a window ahead that never expires)
// counts as nothing, and the next hit that is counted replaces it: somebody else's mistake does not block a limit for
// ever.
//
// It does not put several requests into one round trip, break circuits or answer by on_error.
package redis
