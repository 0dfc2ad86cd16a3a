// Package h2spec runs h2spec (github.com/summerwind/h2spec) against the service: tests of HTTP/2 and of HPACK that send
// frames that gRPC clients never send. The service is the program that is built from the sources as they are. Its
// built-in HTTP/2 server answers, in plain text and over TLS.
//
// The package has only tests. They need nothing besides Go.
package h2spec
