// Package promcompat shows the reference's statistics to Prometheus under the names and labels that they have there.
//
// It owns the mapping from one to the other, the built-in one (default.yaml) and what an operator's file says instead
// (mapping.go), and the collector that applies it (collector.go). The language of mappings, and what matches what, is
// that of the library of statsd_exporter, which is what the reference uses.
//
// Names are mapped once, when they first occur; a scrape reads numbers. Scrapes may come at once: they wait for each
// other. Counting waits for none of them.
//
// It does not count, and it does not serve HTTP.
package promcompat
