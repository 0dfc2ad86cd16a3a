// Package browser looks at pages in a real Chromium: the reports of simulations, and the pictures of the documentation.
//
// A Browser is the process of a Chromium with one page in it. It belongs to the goroutine of its test and ends with it.
// Tests query a page with JavaScript; Quiet fails a test whose page logged an error or fetched something.
//
// It is not a framework: there are no page objects, and selectors are plain JavaScript.
package browser
