// Package limiter makes decisions: it turns a request into a decision, with one snapshot of the rules and one store.
//
// Limiter is the type to use. Decide takes a Request and fills a Decision: it loads the snapshot, finds the rule of each
// descriptor, prepares takes for the whole request, has the store settle them in one call, and judges the outcomes. When the
// store cannot answer, on_error determines the answer. Swap replaces rules and settings as a whole. Peek and Reset are for
// operators: they show and clear a descriptor's counters.
//
// Only this package knows what shadow, quota mode, requests' own limits, overrides, replaces and admission mean. Client headers, dynamic metadata
// and the metrics by rule follow from a decision, so they are here too.
//
// A Limiter may be used by any number of goroutines. Replacing the snapshot never makes a decision wait.
//
// This package knows neither protobuf nor gRPC nor HTTP (package server). It neither reads files (package config) nor counts
// (package backend).
package limiter
