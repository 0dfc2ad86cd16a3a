package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// errMalformed is returned for bytes that are not a RateLimitRequest.
var errMalformed error = &limiter.InvalidError{Message: "malformed envoy.service.ratelimit.v3.RateLimitRequest"}

// tooMuch returns the error of a field that exceeds a bound.
func tooMuch(field, format string, args ...any) error {
	return &limiter.InvalidError{Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

func entriesOf(descriptor int) string { return fmt.Sprintf("descriptors[%d].entries", descriptor) }

// decodeRequest decodes an envoy.service.ratelimit.v3.RateLimitRequest into req, whose slices it reuses. It accepts the
// same bytes as the generated code, with the same meaning: fields in any order, the last of a single field wins,
// repeated messages are merged, unknown fields are skipped, strings must be UTF-8.
//
// The strings of a request are parts of one string, the copy of data. A string that outlives the request must be
// cloned, or it keeps the whole message in memory.
func decodeRequest(data []byte, req *limiter.Request, bounds Requests) error {
	return decodeText(data, string(data), req, bounds)
}

// decodeText is decodeRequest with the same bytes given as a string. The strings of the request are parts of it.
func decodeText(data []byte, text string, req *limiter.Request, bounds Requests) error {
	req.Domain, req.Hits, req.Purpose, req.Reservation = "", 0, limiter.Count, nil
	req.Descriptors = req.Descriptors[:0]
	d := decoder{data: data, text: text, bounds: bounds}
	return d.request(req)
}

// decoder decodes the message between pos and end. For a submessage, it moves end.
type decoder struct {
	data []byte
	text string // the same bytes
	pos  int
	end  int

	bounds  Requests
	tooLong bool // a text was too long
}

func (d *decoder) request(req *limiter.Request) error {
	d.end = len(d.data)
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return errMalformed
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if req.Domain, ok = d.str(); d.tooLong {
				return tooMuch("domain", "more than %d bytes", d.bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			var err error
			if ok, err = d.oneDescriptor(req); err != nil {
				return err
			}
		case num == 3 && typ == protowire.VarintType:
			var v uint64
			v, ok = d.varint()
			req.Hits = uint32(v)
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return errMalformed
		}
	}
	return nil
}

// oneDescriptor decodes another descriptor of a request.
func (d *decoder) oneDescriptor(req *limiter.Request) (ok bool, err error) {
	if len(req.Descriptors) >= d.bounds.MaxDescriptors {
		return false, tooMuch("descriptors", "more than %d in one request", d.bounds.MaxDescriptors)
	}
	outer, ok := d.enter()
	if !ok {
		return false, nil
	}
	if err := d.descriptor(addDescriptor(req), len(req.Descriptors)-1); err != nil {
		return false, err
	}
	d.end = outer
	return true, nil
}

// addDescriptor appends an empty descriptor that reuses the memory of an earlier one.
func addDescriptor(req *limiter.Request) *limiter.Descriptor {
	n := len(req.Descriptors)
	if n == cap(req.Descriptors) {
		req.Descriptors = append(req.Descriptors, limiter.Descriptor{})
		return &req.Descriptors[n]
	}
	req.Descriptors = req.Descriptors[:n+1]
	added := &req.Descriptors[n]
	*added = limiter.Descriptor{Entries: added.Entries[:0]}
	return added
}

func (d *decoder) descriptor(to *limiter.Descriptor, index int) error {
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return errMalformed
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if len(to.Entries) >= d.bounds.MaxEntries {
				return tooMuch(entriesOf(index), "more than %d", d.bounds.MaxEntries)
			}
			var e descriptor.Entry
			if e, ok = d.entry(); ok {
				to.Entries = append(to.Entries, e)
			}
			if d.tooLong {
				return tooMuch(entriesOf(index), "a key or a value of more than %d bytes", d.bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			to.HasLimit = true
			ok = d.requestLimit(&to.Limit)
		case num == 3 && typ == protowire.BytesType:
			to.HasHits = true
			ok = d.wrapped(&to.Hits)
		case num == 4 && typ == protowire.VarintType:
			var v uint64
			v, ok = d.varint()
			to.Refund = v != 0
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return errMalformed
		}
	}
	return nil
}

func (d *decoder) entry() (e descriptor.Entry, ok bool) {
	outer, ok := d.enter()
	if !ok {
		return e, false
	}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return e, false
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			e.Key, ok = d.str()
		case num == 2 && typ == protowire.BytesType:
			e.Value, ok = d.str()
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return e, false
		}
	}
	d.end = outer
	return e, true
}

func (d *decoder) requestLimit(to *limiter.RequestLimit) bool {
	return d.fields(func(num protowire.Number, typ protowire.Type) (ok bool) {
		var v uint64
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, ok = d.varint()
			to.Requests = uint32(v)
		case num == 2 && typ == protowire.VarintType:
			v, ok = d.varint()
			to.Unit = int32(v)
		case num == 3 && typ == protowire.BytesType:
			v = uint64(to.Multiplier)
			ok = d.wrapped(&v)
			to.Multiplier = uint32(v)
		default:
			ok = d.skip(num, typ)
		}
		return ok
	})
}

// wrapped decodes a google.protobuf wrapper of an integer. An empty wrapper leaves the value unchanged, so repeated
// wrappers are merged.
func (d *decoder) wrapped(to *uint64) bool {
	return d.fields(func(num protowire.Number, typ protowire.Type) (ok bool) {
		if num == 1 && typ == protowire.VarintType {
			*to, ok = d.varint()
			return ok
		}
		return d.skip(num, typ)
	})
}

// fields decodes a submessage outside of hot paths. It calls read for each field.
func (d *decoder) fields(read func(protowire.Number, protowire.Type) bool) bool {
	outer, ok := d.enter()
	if !ok {
		return false
	}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok || !read(num, typ) {
			return false
		}
	}
	d.end = outer
	return true
}

// wireDuration is a google.protobuf.Duration as it was sent.
type wireDuration struct {
	seconds int64
	nanos   int32
}

// wireDuration decodes a google.protobuf.Duration. Repeated messages are merged.
func (d *decoder) wireDuration(to *wireDuration) bool {
	return d.fields(func(num protowire.Number, typ protowire.Type) (ok bool) {
		var v uint64
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, ok = d.varint()
			to.seconds = int64(v)
		case num == 2 && typ == protowire.VarintType:
			v, ok = d.varint()
			to.nanos = int32(v)
		default:
			ok = d.skip(num, typ)
		}
		return ok
	})
}

// tag decodes the number and the type of the next field.
func (d *decoder) tag() (protowire.Number, protowire.Type, bool) {
	v, ok := d.varint()
	num := v >> 3
	if !ok || num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return 0, 0, false
	}
	return protowire.Number(num), protowire.Type(v & 7), true
}

func (d *decoder) varint() (uint64, bool) {
	if d.pos < d.end && d.data[d.pos] < 0x80 {
		d.pos++
		return uint64(d.data[d.pos-1]), true
	}
	v, n := protowire.ConsumeVarint(d.data[d.pos:d.end])
	if n < 0 {
		return 0, false
	}
	d.pos += n
	return v, true
}

// length decodes the length of a field and returns the field's end.
func (d *decoder) length() (end int, ok bool) {
	v, ok := d.varint()
	if !ok || v > uint64(d.end-d.pos) {
		return 0, false
	}
	return d.pos + int(v), true
}

// enter starts a submessage. After the end of the submessage, the caller restores outer as the decoder's end.
func (d *decoder) enter() (outer int, ok bool) {
	end, ok := d.length()
	outer, d.end = d.end, end
	return outer, ok
}

func (d *decoder) str() (string, bool) {
	end, ok := d.length()
	if !ok {
		return "", false
	}
	if end-d.pos > d.bounds.MaxTextBytes {
		d.tooLong = true
		return "", false
	}
	s := d.text[d.pos:end]
	d.pos = end
	return s, utf8.ValidString(s)
}

func (d *decoder) skip(num protowire.Number, typ protowire.Type) bool {
	n := protowire.ConsumeFieldValue(num, typ, d.data[d.pos:d.end])
	if n < 0 {
		return false
	}
	d.pos += n
	return true
}
