// Package browser looks at pages in a real Chromium: the reports of simulations, and the pictures of the documentation.
//
// A Browser is the process of a Chromium with one page in it. It belongs to the goroutine of its test and ends with it.
// Tests ask a page in JavaScript what it shows; Quiet fails a test whose page logged an error or fetched something.
//
// It is no framework: there are no page objects, and selectors are plain JavaScript.
package browser
