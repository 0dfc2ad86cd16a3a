//go:build linux && cgo

package main

/*
#include <stdlib.h>
#include "abi.h"

#cgo noescape ratelimitd_header
#cgo nocallback ratelimitd_header
#cgo noescape ratelimitd_attribute
#cgo nocallback ratelimitd_attribute
#cgo noescape ratelimitd_cluster
#cgo nocallback ratelimitd_cluster
#cgo noescape ratelimitd_metadata_string
#cgo nocallback ratelimitd_metadata_string
#cgo noescape ratelimitd_metadata_number
#cgo nocallback ratelimitd_metadata_number
#cgo noescape ratelimitd_set_metadata
#cgo nocallback ratelimitd_set_metadata
#cgo noescape ratelimitd_flag
#cgo nocallback ratelimitd_flag
#cgo nocallback ratelimitd_count
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"

	"github.com/ratelimitd/ratelimitd/envoymodule/internal/filter"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// envoyStream is a request. It is valid in its hooks.
type envoyStream struct{ c *C.stream }

func (s envoyStream) Header(name string, index int) (string, int) {
	var value C.buffer
	var count C.size_t
	if !C.ratelimitd_header(s.c.envoy, chars(name), C.size_t(len(name)), C.size_t(index), &value, &count) {
		return "", 0
	}
	return view(value), int(count)
}

// sourceAddress is Envoy's number of the attribute.
const sourceAddress = 24

func (s envoyStream) RemoteAddress() (string, bool) {
	var value C.buffer
	found := bool(C.ratelimitd_attribute(s.c.envoy, sourceAddress, &value))
	return view(value), found
}

func (s envoyStream) Cluster() (string, bool) {
	var value C.buffer
	found := bool(C.ratelimitd_cluster(s.c.envoy, &value))
	return view(value), found
}

func (s envoyStream) Metadata(from filter.Source, space, key string) (string, bool) {
	var value C.buffer
	found := bool(C.ratelimitd_metadata_string(
		s.c.envoy, C.uint32_t(from), chars(space), C.size_t(len(space)), chars(key), C.size_t(len(key)), &value))
	return view(value), found
}

func (s envoyStream) MetadataNumber(from filter.Source, space, key string) (float64, bool) {
	var value C.double
	found := bool(C.ratelimitd_metadata_number(
		s.c.envoy, C.uint32_t(from), chars(space), C.size_t(len(space)), chars(key), C.size_t(len(key)), &value))
	return float64(value), found
}

func (s envoyStream) Count(c filter.Counter) { C.ratelimitd_count(s.c.envoy, C.size_t(c)) }

func (s envoyStream) SetMetadata(space string, message []byte) {
	first := (*C.char)(unsafe.Pointer(unsafe.SliceData(message)))
	C.ratelimitd_set_metadata(s.c.envoy, chars(space), C.size_t(len(space)), first, C.size_t(len(message)))
}

func (s envoyStream) Flag(text string) {
	C.ratelimitd_flag(s.c.envoy, chars(text), C.size_t(len(text)))
}

// pack copies headers into one block of C's memory. Envoy requires keys in lower case.
func pack(headers []limiter.Header) *C.block {
	size := C.sizeof_block
	for i := range headers {
		size += C.sizeof_header + len(headers[i].Key) + len(headers[i].Value)
	}
	b := (*C.block)(C.malloc(C.size_t(size))) // never nil: cgo ends the process first
	// The collector reads the bytes that a pointer overwrites: half of an old pointer there would end the process.
	clear(unsafe.Slice((*byte)(unsafe.Pointer(b)), size))
	b.n = C.size_t(len(headers))
	all := unsafe.Slice((*C.header)(unsafe.Add(unsafe.Pointer(b), C.sizeof_block)), len(headers))
	rest := unsafe.Add(unsafe.Pointer(b), C.sizeof_block+C.sizeof_header*len(headers))
	put := func(text string) *C.char {
		at := (*C.char)(rest)
		rest = unsafe.Add(rest, copy(unsafe.Slice((*byte)(rest), len(text)), text))
		return at
	}
	for i := range headers {
		h := &headers[i]
		key := put(h.Key)
		for j, c := range unsafe.Slice((*byte)(unsafe.Pointer(key)), len(h.Key)) {
			if 'A' <= c && c <= 'Z' {
				*(*byte)(unsafe.Add(unsafe.Pointer(key), j)) = c + 'a' - 'A'
			}
		}
		all[i] = C.header{key: key, key_length: C.size_t(len(h.Key)), value: put(h.Value),
			value_length: C.size_t(len(h.Value))}
	}
	return b
}

func (s envoyStream) AddToRequest(headers []limiter.Header) {
	b := pack(headers)
	defer C.free(unsafe.Pointer(b))
	C.ratelimitd_add_request_headers(s.c.envoy, b)
}

func (s envoyStream) AddToResponse(headers []limiter.Header) { s.c.headers = pack(headers) }

// Reply may run other hooks of this request before it returns.
func (s envoyStream) Reply(status uint32, headers []limiter.Header, details string) {
	b := pack(headers)
	defer C.free(unsafe.Pointer(b))
	C.ratelimitd_reply(s.c.envoy, C.uint32_t(status), b, chars(details), C.size_t(len(details)))
}

// scheduler makes Envoy call the hook ratelimitd_resume.
type scheduler C.uintptr_t

func (s envoyStream) Waker() filter.Waker {
	return scheduler(C.envoy_dynamic_module_callback_http_filter_scheduler_new(s.c.envoy))
}

func (s scheduler) Wake() {
	C.envoy_dynamic_module_callback_http_filter_scheduler_commit(C.uintptr_t(s), 0)
}
func (s scheduler) Free() {
	C.envoy_dynamic_module_callback_http_filter_scheduler_delete(C.uintptr_t(s))
}

//export ratelimitd_request
func ratelimitd_request(s *C.stream) (status C.int) {
	defer survive("request", func() { status = C.go_on })
	f := cgo.Handle(s.config).Value().(*filter.Filter)
	var route *filter.Route
	if r := C.envoy_dynamic_module_callback_get_most_specific_route_config(s.envoy); r != 0 {
		route = cgo.Handle(r).Value().(*filter.Route)
	}
	call, result := f.Begin(envoyStream{s}, route)
	switch result {
	case filter.Pause:
		s.paused = C.uintptr_t(cgo.NewHandle(call))
		return C.pause
	case filter.Stop:
		return C.stop_iteration
	default:
		return C.go_on
	}
}

// ratelimitd_resume does not touch s after the answer: a reply may end the request, and free it, before it returns.
//
//export ratelimitd_resume
func ratelimitd_resume(s *C.stream) {
	handle, envoy := s.paused, s.envoy
	s.paused = 0
	result := filter.Continue // result if the module cannot answer
	defer func() {
		if result == filter.Continue {
			C.envoy_dynamic_module_callback_http_filter_continue_decoding(envoy)
		}
	}()
	defer survive("paused request", func() {})
	call := cgo.Handle(handle).Value().(*filter.Call)
	if result = call.Resume(envoyStream{s}); result == filter.Pause {
		s.paused = handle
	} else {
		cgo.Handle(handle).Delete()
	}
}

//export ratelimitd_gone
func ratelimitd_gone(s *C.stream) {
	defer survive("end of a request", func() {})
	handle := cgo.Handle(s.paused)
	s.paused = 0
	call := handle.Value().(*filter.Call)
	handle.Delete()
	call.Leave()
}
