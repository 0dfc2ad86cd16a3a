// Package statsd sends envoyproxy/ratelimit's statistics to StatsD or DogStatsD, and writes them as the text of /stats.
//
// A Source provides the current values. A Sender reads it at every interval and sends the changes, over a connection
// that it reopens when it breaks. Mogrifiers turn parts of names into tags. Timings keeps a random sample of response
// times.
//
// Counting does not depend on sending and never waits for it: the Sender only reads. Any number of goroutines may use
// Timings; a Sender belongs to one.
//
// The package does not count, and is independent of the meaning of the statistics.
package statsd
