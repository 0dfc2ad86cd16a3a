// Package accesslog turns the lines of access logs into the requests that a rate limit service would have been asked.
//
// It owns the mapping file: its language (language.go, reader.go for the YAML) and what it compiles to (mapping.go); the
// formats, each reading bytes without allocating per line: text written after a pattern, Envoy's above all (text.go),
// JSON lines (json.go) and CSV (csv.go); times (instant.go); the way through a log, line by line, with gzip found by
// itself (log.go, lines.go); and how the fields of a line become a request and a caller (build.go).
//
// A Mapping is immutable and may be used by any number of goroutines; a Reader belongs to one.
//
// It decides nothing, keeps no line, and does not put lines in order: package simulate does.
package accesslog
