// The envoymodule is the limiter inside Envoy: a shared object that Envoy loads as a dynamic module. It decides
// requests in Envoy's own process, by the rules and counters of ratelimitd. docs/do/envoy-module.md explains how to
// build and configure it.
//
//	CGO_ENABLED=1 go build -buildmode=c-shared -o libratelimitd.so .
//
// hooks.c defines the functions that Envoy calls. It enters Go once for each request. This package forwards these calls
// to package filter, and implements the access to requests that package filter needs. Its only state is the handles
// that Envoy holds.
//
// It needs Linux and a C compiler. Elsewhere only package filter is built.
package main

func main() {} // never called: Go wants one
