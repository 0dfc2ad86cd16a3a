// Package rapidtest decides how many of its random or exhaustive cases a test tries (Cases). The nightly run, which
// sets NEW_VALUES, and make soak try all of them. Other runs look for faults of one change, so they try a few.
//
// For tests that draw values with rapid, importing the package is enough. In .ci/run they draw the same values in every
// run, and fewer, so that a change does not fail by chance. Everywhere else they draw new values each time.
package rapidtest
