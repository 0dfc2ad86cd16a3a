package server

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

func (s *reservations) appendReserved(c *rateLimitCall, b []byte) ([]byte, error) {
	d := &c.decision
	b = appendUint(b, 1, uint64(d.Code))
	if d.Reserved() {
		id, err := newID(s.ids, c)
		if err != nil {
			return nil, err
		}
		b = appendString(b, 2, id)
	}
	b = appendStatuses(b, 3, d)
	if d.Reserved() {
		b = appendInstant(b, 4, d.ReservedUntil())
	}
	return appendHeaders(b, 5, d.Headers), nil
}

func (s *reservations) appendCommitted(c *rateLimitCall, b []byte) ([]byte, error) {
	b, _ = appendResult(c, b)
	return appendStatuses(b, 2, &c.decision), nil
}

// appendResult appends the result of a step of a reservation.
func appendResult(c *rateLimitCall, b []byte) ([]byte, error) {
	result := resultDone
	if !c.decision.ReservationKnown() {
		result = resultUnknown
	}
	return appendUint(b, 1, uint64(result)), nil
}

func appendExtended(c *rateLimitCall, b []byte) ([]byte, error) {
	b, _ = appendResult(c, b)
	if !c.decision.ReservationKnown() {
		return b, nil
	}
	return appendInstant(b, 2, c.decision.ReservedUntil()), nil
}

// appendStatuses appends a ratelimitd.v1.DescriptorStatus for each descriptor.
func appendStatuses(b []byte, num protowire.Number, d *limiter.Decision) []byte {
	for i := range d.Statuses {
		var reserved uint64
		if i < len(d.Reservations) {
			reserved = uint64(max(d.Reservations[i].Reserved, 0))
		}
		b = appendNested(b, num, func(b []byte) []byte {
			b = appendUint(appendOwnStatus(b, &d.Statuses[i]), 7, reserved)
			return appendUint(b, 8, degraded(&d.Statuses[i]))
		})
	}
	return b
}

// appendOwnStatus appends the common fields of ratelimitd.v1.DescriptorStatus and DecideStatus.
func appendOwnStatus(b []byte, s *limiter.Status) []byte {
	b = appendUint(b, 1, uint64(s.Code))
	if s.Rule != nil {
		b = appendString(b, 2, s.Rule.Path)
	}
	b = appendUint(b, 3, s.Limit.Requests)
	b = appendUint(b, 4, s.Remaining)
	if s.Limited {
		b = appendDuration(b, 5, s.Reset)
	}
	if s.Code == limiter.OverLimit && s.RetryAfter >= 0 {
		b = appendDuration(b, 6, s.RetryAfter)
	}
	return b
}

// degraded encodes whether on_error decided the status.
func degraded(s *limiter.Status) uint64 {
	return protowire.EncodeBool(s.Degraded != descriptor.OnErrorDefault)
}

func appendDuration(b []byte, num protowire.Number, d time.Duration) []byte {
	seconds, nanos := splitDuration(d)
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(sizeUint(seconds)+sizeUint(nanos)))
	return appendUint(appendUint(b, 1, seconds), 2, nanos)
}

// appendInstant appends a google.protobuf.Timestamp, or nothing for the zero time.
func appendInstant(b []byte, num protowire.Number, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	return appendDuration(b, num, time.Duration(t.UnixNano()))
}
