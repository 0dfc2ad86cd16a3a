// Package destination sends the events of package events to a webhook, a file or the standard output. It is separate
// because a program with a limiter should not have to link an HTTP client.
package destination
