// Package metric declares the metrics of a package, without a client of any monitoring system.
//
// A package counts in variables of package sync/atomic and in Durations. It declares each metric as a Family: the name,
// the description, the labels, and a function that reads the values. Options of packages have a field of type Registry,
// in which New registers the families. Package prom registers them with Prometheus' client; a program without metrics
// leaves the field nil. So a decision costs one atomic addition for each number that it counts, and package ratelimit
// adds no client to programs that import it.
//
// The functions of a Family, and the methods of Durations, may be called concurrently. The package does not check
// names, and it does not store the values of labels: that is up to the package that declares the family.
package metric
