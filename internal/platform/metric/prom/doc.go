// Package prom registers the metrics that packages declare (internal/platform/metric) with Prometheus' client. It is
// for the service and for tests. It stores no values: a scrape reads the counters themselves.
package prom
