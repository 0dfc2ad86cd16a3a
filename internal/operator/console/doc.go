// Package console is the web page on the admin port: files that a browser loads once, and a stream of events that keeps
// the page up to date.
//
// The page asks the admin API for everything else, as any other client does. Its files contain no secrets, so that a
// browser may load them without a token. They are served as they are written, without a build step. The Content
// Security Policy lets the page load and call only the port that it came from.
package console
