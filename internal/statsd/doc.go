// Package statsd tells what happens under the names that the reference's statistics have, to who listens for StatsD or
// DogStatsD.
//
// It owns what a statistic is (source.go), the text of /stats (text.go), the sending of what has changed at every
// interval (sender.go) over a connection that is made again when it broke (conn.go), tags and mogrifiers, which give
// statistics other names and tags (tags.go, mogrifier.go), and the sample of response times that is sent (timings.go).
//
// What is counted is read from a Source when it is sent: counting does not know that somebody listens, and does not wait
// for anybody. Timings may be used by any number of goroutines; a Sender is run by one.
//
// It does not count, and it does not know what the statistics mean.
package statsd
