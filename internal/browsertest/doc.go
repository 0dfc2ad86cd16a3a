// Package browsertest shows pages to a real browser for tests: reports of simulations, pictures for the documentation.
//
// It owns the process of the Chromium and its page (browser.go). A Browser belongs to the goroutine of its test.
//
// It is no framework: what a page should show, tests ask it in JavaScript. This package is for tests only.
package browsertest
