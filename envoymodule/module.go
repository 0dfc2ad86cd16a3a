//go:build linux && cgo

package main

/*
#include <stdlib.h>
#include "abi.h"

#cgo CFLAGS: -Wall -Wextra
#cgo noescape ratelimitd_log
#cgo nocallback ratelimitd_log
#cgo noescape ratelimitd_define_counter
#cgo nocallback ratelimitd_define_counter
*/
import "C"

import (
	"fmt"
	"log/slog"
	"os"
	"runtime/cgo"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/ratelimitd/ratelimitd/envoymodule/internal/filter"
)

// garbagePercent is the GOGC of this process, unless the variable is set: the heap is small, so rare collections cost
// little memory.
const garbagePercent = 400

func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

var log = slog.New(newLogHandler())

// envoyHost is the Envoy that loads a configuration.
type envoyHost struct{ config C.uintptr_t }

func (envoyHost) Concurrency() int { return int(C.envoy_dynamic_module_callback_get_concurrency()) }

func (envoyHost) Validating() bool { return bool(C.envoy_dynamic_module_callback_is_validation_mode()) }

func (h envoyHost) DefineCounter(name string) (filter.Counter, error) {
	var id C.size_t
	if result := C.ratelimitd_define_counter(h.config, chars(name), C.size_t(len(name)), &id); result != 0 {
		return 0, fmt.Errorf("define the counter %s: Envoy answers %d", name, result)
	}
	return filter.Counter(id), nil
}

// chars returns the bytes of a text, for a callback that does not keep them.
func chars(text string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(text))) }

// view returns a text of Envoy's. It is valid until the present hook ends.
func view(b C.buffer) string { return unsafe.String((*byte)(unsafe.Pointer(b.data)), int(b.length)) }

// survive logs a panic instead of ending Envoy.
func survive(where string, then func()) {
	if p := recover(); p != nil {
		log.Error("a mistake in the module was survived", "where", where, "panic", p, "stack", string(debug.Stack()))
		then()
	}
}

// validated is the handle of a configuration that was only checked.
var validated = cgo.NewHandle((*filter.Filter)(nil))

//export ratelimitd_config_new
func ratelimitd_config_new(envoy C.uintptr_t, name, config C.buffer) (handle C.uintptr_t) {
	defer survive("configuration", func() { handle = 0 })
	open.Add(1)
	f, err := filter.Open([]byte(view(config)), envoyHost{envoy}, log)
	if err != nil {
		log.Error("the configuration is rejected", "filter", view(name), "error", err)
		open.Add(-1)
		return 0
	}
	if f == nil {
		open.Add(-1)
		return C.uintptr_t(validated)
	}
	return C.uintptr_t(cgo.NewHandle(f))
}

// onMainThread reports whether Envoy's main thread is here. Elsewhere it is a worker, whose last request of a replaced
// configuration has ended: other requests must not wait with it.
func onMainThread() bool { return syscall.Gettid() == os.Getpid() }

//export ratelimitd_config_destroy
func ratelimitd_config_destroy(config C.uintptr_t) {
	defer survive("end of a configuration", func() {})
	handle := cgo.Handle(config)
	if handle == validated {
		return
	}
	defer open.Add(-1)
	f := handle.Value().(*filter.Filter)
	handle.Delete()
	f.Close(onMainThread())
}

//export ratelimitd_route_new
func ratelimitd_route_new(config C.buffer) (handle C.uintptr_t) {
	defer survive("configuration of a route", func() { handle = 0 })
	open.Add(1)
	defer open.Add(-1)
	r, err := filter.ReadRoute([]byte(view(config)))
	if err != nil {
		log.Error("the configuration of a route is rejected", "error", err)
		return 0
	}
	return C.uintptr_t(cgo.NewHandle(r))
}

//export ratelimitd_route_destroy
func ratelimitd_route_destroy(route C.uintptr_t) {
	defer survive("end of a route", func() {})
	cgo.Handle(route).Delete()
}
