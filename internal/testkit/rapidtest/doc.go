// Package rapidtest makes the tests that draw values with rapid draw the same ones in every run of .ci/run, and fewer: a change is
// rejected for what it does, not for what a test finds that day. Everywhere else they draw new values each time.
//
// Packages import it only for this effect.
package rapidtest
