// Package rapidtest says how much of what is random or exhaustive a run of the tests tries. The nightly run, which sets NEW_VALUES, and make
// soak try all of it: Cases. Other runs try a part, because they look for what the change did.
//
// For tests that draw values with rapid, importing the package is enough. In .ci/run they draw the same values in every run, and fewer, so a
// change is not rejected for what a test finds that day. Everywhere else they draw new values each time.
package rapidtest
