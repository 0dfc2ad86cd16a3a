// Package statsd sends envoyproxy/ratelimit's statistics to StatsD or DogStatsD, and writes them as the text of /stats.
//
// A Source provides the current values. A Sender reads it at every interval and sends what has changed, over a
// connection that it makes again when it breaks. Mogrifiers turn parts of names into tags. Timings keeps a random
// sample of response times.
//
// Counting does not depend on sending and never waits for it: the Sender only reads. Timings may be used by any number
// of goroutines; a Sender belongs to one.
//
// The package counts nothing, and does not know what the statistics mean.
package statsd
