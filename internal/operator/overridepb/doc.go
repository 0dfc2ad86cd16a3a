// Package overridepb turns overrides into messages of the admin API and back, for the server and for the commands that
// call it.
//
// Its functions may be called by any number of goroutines. It does not depend on rules.
package overridepb
