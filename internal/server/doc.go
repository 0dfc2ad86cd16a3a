// Package server answers callers: on the way of a decision it is the only package that knows protobuf, gRPC and HTTP.
//
// It owns the first and the last step of a request's way, as pure functions between bytes and plain values (decode.go,
// encode.go), the codec that brings them into gRPC (codec.go), the rate limit service (ratelimit.go) and which code an
// error becomes (errors.go), the admin services (admin.go, counters.go), the gate before everything that is for operators (operators.go), health
// in all its forms (health.go), the gRPC servers and what they are tuned with (grpc.go, recover.go), the HTTP listener
// (http.go, json.go), the debug listener, which the admin services share (debug.go, rlconfig.go, loglevel.go, hotkeys.go), the metrics
// of calls (metrics.go), what looks on at decisions where that is asked for (trace.go, refusals.go, sampler.go), and the
// life of all of them (server.go, listen.go, reuseport.go, usertimeout_linux.go, intake.go).
//
// A Server is made by New and lives while Run runs; SetServing may be called by any goroutine at any time. What Options
// bring along is called concurrently.
//
// It makes no decision and holds no policy: that is package limiter's. It reads no environment and no flags; that is
// done in cmd.
package server
