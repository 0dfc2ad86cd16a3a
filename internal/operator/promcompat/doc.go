// Package promcompat shows envoyproxy/ratelimit's statistics to Prometheus, under envoyproxy/ratelimit's names and
// labels.
//
// A Collector applies a mapping from statistics to metrics: the built-in one, or an operator's file. The language of
// mappings, and how they match, come from the library of statsd_exporter, which envoyproxy/ratelimit uses too.
//
// A name is mapped once, when it first occurs; after that a scrape only reads numbers. Concurrent scrapes wait for each
// other. Counting never waits for a scrape.
//
// The package counts nothing and serves no HTTP.
package promcompat
