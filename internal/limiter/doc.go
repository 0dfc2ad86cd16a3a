// Package limiter makes decisions: it turns a request into a decision, with one snapshot of the rules and one store.
//
// Limiter is the type to use. Start takes a Request and fills a Decision, immediately or later; Decide waits for it.
// Both load the snapshot and run the same stages: match each descriptor, apply its rule, charge the store in one call,
// judge the outcomes, report. When the store cannot answer, on_error decides. Swap replaces rules and settings
// atomically. Peek and Reset are for operators: they show and clear a descriptor's counters.
//
// Only this package implements shadow and quota mode, requests' own limits, overrides, replaces and admission. Client
// headers, dynamic metadata and per-rule metrics are derived from a decision, so they are here too.
//
// A Limiter may be used by any number of goroutines. Replacing the snapshot never makes a decision wait.
//
// This package depends neither on protobuf nor on gRPC or HTTP (package server). It neither reads files (package
// config) nor counts (package backend).
package limiter
