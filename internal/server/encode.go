package server

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// appendResponse appends a decision as an envoy.service.ratelimit.v3.RateLimitResponse.
func appendResponse(b []byte, d *limiter.Decision) []byte {
	b = appendUint(b, 1, uint64(d.Code))
	for i := range d.Statuses {
		s := &d.Statuses[i]
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeStatus(s)))
		b = appendStatus(b, s)
	}
	b = appendHeaders(b, 3, d.Headers)
	b = appendHeaders(b, 4, d.Upstream)
	if d.Metadata != nil {
		b = appendNested(b, 6, func(b []byte) []byte { return appendStruct(b, d.Metadata) })
	}
	return b
}

func appendHeaders(b []byte, num protowire.Number, headers []limiter.Header) []byte {
	for i := range headers {
		h := &headers[i]
		b = protowire.AppendTag(b, num, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeString(h.Key)+sizeString(h.Value)))
		b = appendString(b, 1, h.Key)
		b = appendString(b, 2, h.Value)
	}
	return b
}

func appendStatus(b []byte, s *limiter.Status) []byte {
	b = appendUint(b, 1, uint64(s.Code))
	if s.Limited {
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeLimit(&s.Limit)))
		b = appendUint(b, 1, wire32(s.Limit.Requests))
		b = appendUint(b, 2, uint64(s.Limit.Unit))
		b = appendString(b, 3, limiter.SafeName(s.Limit.Name))
		if n := uint64(s.Limit.Multiplier); n > 1 {
			b = protowire.AppendTag(b, 4, protowire.BytesType)
			b = appendUint(append(b, byte(sizeUint(n))), 1, n)
		}
	}
	b = appendUint(b, 3, limitRemaining(s))
	if s.Limited {
		seconds, nanos := splitDuration(s.UntilReset())
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeUint(seconds)+sizeUint(nanos)))
		b = appendUint(b, 1, seconds)
		b = appendUint(b, 2, nanos)
	}
	return b
}

func sizeStatus(s *limiter.Status) int {
	n := sizeUint(uint64(s.Code)) + sizeUint(limitRemaining(s))
	if s.Limited {
		seconds, nanos := splitDuration(s.UntilReset())
		n += 1 + protowire.SizeBytes(sizeLimit(&s.Limit))
		n += 1 + protowire.SizeBytes(sizeUint(seconds)+sizeUint(nanos))
	}
	return n
}

func sizeLimit(l *limiter.CurrentLimit) int {
	n := sizeUint(wire32(l.Requests)) + sizeUint(uint64(l.Unit)) + sizeString(limiter.SafeName(l.Name))
	if l.Multiplier > 1 {
		n += 1 + protowire.SizeBytes(sizeUint(uint64(l.Multiplier)))
	}
	return n
}

// limitRemaining returns the limit_remaining of a status. It is 0 for a status over its limit, as in
// envoyproxy/ratelimit, even if a few hits remain that do not suffice for the request. Otherwise Envoy's x-ratelimit
// headers, which show the status with the lowest limit_remaining, would show a status that let the request pass.
func limitRemaining(s *limiter.Status) uint64 {
	if s.Code == limiter.OverLimit {
		return 0
	}
	return wire32(s.Remaining)
}

// wire32 clamps a number to a field of 32 bits. The dynamic metadata contains the exact number.
func wire32(n uint64) uint64 { return min(n, math.MaxUint32) }

// splitDuration splits a duration for google.protobuf.Duration: both parts have the duration's sign, and a negative
// number is encoded in 64 bits.
func splitDuration(d time.Duration) (seconds, nanos uint64) {
	return uint64(int64(d / time.Second)), uint64(int64(d % time.Second))
}

// appendUint appends an integer, enum or boolean field, or nothing for the default. All our field numbers are below 16,
// so their tag is one byte.
func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, byte(num<<3)|byte(protowire.VarintType)), v)
}

func sizeUint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(append(b, byte(num<<3)|byte(protowire.BytesType)), s)
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}

// appendNested appends a submessage whose length is known only after it is encoded. If its length needs more than one
// byte (128 bytes or more), the submessage is moved.
func appendNested(b []byte, num protowire.Number, body func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	start := len(b)
	b = body(append(b, 0))
	size := len(b) - start - 1
	for range protowire.SizeVarint(uint64(size)) - 1 {
		b = append(b, 0)
	}
	copy(b[len(b)-size:], b[start+1:])
	_ = protowire.AppendVarint(b[:start], uint64(size)) // written in place
	return b
}

// appendStruct appends the fields of a google.protobuf.Struct, sorted by name so that equal answers are equal bytes.
func appendStruct(b []byte, fields map[string]any) []byte {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		b = appendNested(b, 1, func(b []byte) []byte {
			b = appendString(b, 1, validText(name))
			return appendNested(b, 2, func(b []byte) []byte { return appendValue(b, fields[name]) })
		})
	}
	return b
}

// appendValue appends the single field of a google.protobuf.Value, whose numbers are all float64. Any other type is
// encoded as text.
func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, 1<<3|byte(protowire.VarintType), 0)
	case bool:
		return protowire.AppendVarint(append(b, 4<<3|byte(protowire.VarintType)), protowire.EncodeBool(v))
	case string:
		return protowire.AppendString(append(b, 3<<3|byte(protowire.BytesType)), validText(v))
	case int:
		return appendNumber(b, float64(v))
	case int64:
		return appendNumber(b, float64(v))
	case uint64:
		return appendNumber(b, float64(v))
	case float64:
		return appendNumber(b, v)
	case map[string]any:
		return appendNested(b, 5, func(b []byte) []byte { return appendStruct(b, v) })
	case []any:
		return appendNested(b, 6, func(b []byte) []byte {
			for _, element := range v {
				b = appendNested(b, 1, func(b []byte) []byte { return appendValue(b, element) })
			}
			return b
		})
	default:
		return appendValue(b, fmt.Sprint(v))
	}
}

func appendNumber(b []byte, v float64) []byte {
	return protowire.AppendFixed64(append(b, 2<<3|byte(protowire.Fixed64Type)), math.Float64bits(v))
}

// validText is s with invalid UTF-8 replaced: clients reject answers that contain it.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
