package server

import (
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
)

// checkIDSize rejects a request whose reservation id would be too long to be accepted later.
func checkIDSize(req *limiter.Request) error {
	size := sizeString(req.Domain)
	for i := range req.Descriptors {
		const mostReserved = 1 + binary.MaxVarintLen64
		size += 1 + protowire.SizeBytes(sizeEntries(&req.Descriptors[i])+1+protowire.SizeBytes(mostReserved))
	}
	if size > reservation.MaxBytes {
		return tooMuch("descriptors", "the domain and the entries have %d bytes, and the id of a reservation has room for %d",
			size, reservation.MaxBytes)
	}
	return nil
}

func sizeEntries(d *limiter.Descriptor) (size int) {
	for _, e := range d.Entries {
		size += 1 + protowire.SizeBytes(sizeString(e.Key)+sizeString(e.Value))
	}
	return size
}

// id decodes an id, which can be longer than other texts.
func (d *decoder) id() (string, bool) {
	end, ok := d.length()
	if !ok || end-d.pos > reservation.MaxSize {
		return "", false
	}
	id := d.text[d.pos:end]
	d.pos = end
	return id, true
}

// open restores the request from an id: its domain, and its descriptors with their reserved hits.
func (s *reservations) open(c *rateLimitCall, id string, op limiter.ReservationOp) error {
	h := c.begin(op)
	n, bytes, err := s.ids.Open(id)
	if err != nil {
		return invalidID(err)
	}
	h.ID = limiter.ReservationID(n)
	var ignored limiter.Reservation
	d := decoder{data: []byte(bytes), text: bytes, bounds: s.bounds}
	if err := d.reserve(&c.request, &ignored); err != nil {
		return invalidID(reservation.ErrID) // another version wrote it
	}
	return nil
}

func invalidID(err error) error {
	if err == reservation.ErrID { //nolint:errorlint // it is not wrapped
		return &limiter.InvalidError{Field: "id", Message: "id: " + err.Error(), Err: err}
	}
	return err
}

// readID decodes a message with an id and an optional time.
func (s *reservations) readID(data []byte, text, message string) (id string, ttl time.Duration, err error) {
	d := decoder{data: data, text: text, end: len(data), bounds: s.bounds}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return "", 0, malformed(message)
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			id, ok = d.id()
		case num == 2 && typ == protowire.BytesType:
			ttl, ok = d.duration(ttl)
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return "", 0, malformed(message)
		}
	}
	return id, ttl, nil
}

// newID returns the id of a call's reservation. It contains a ReserveRequest: the domain and descriptors to find its
// counters again, and the reserved hits.
func newID(ids *reservation.Signer, c *rateLimitCall) (string, error) {
	req, d := &c.request, &c.decision
	var room [256]byte
	b := appendString(room[:0], 1, req.Domain)
	for i := range req.Descriptors {
		from := &req.Descriptors[i]
		var reserved uint64
		if i < len(d.Reservations) {
			reserved = uint64(max(d.Reservations[i].Reserved, 0))
		}
		size := sizeEntries(from) + 1 + protowire.SizeBytes(sizeUint(reserved))
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		for _, e := range from.Entries {
			b = protowire.AppendTag(b, 1, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(sizeString(e.Key)+sizeString(e.Value)))
			b = appendString(b, 1, e.Key)
			b = appendString(b, 2, e.Value)
		}
		b = protowire.AppendTag(b, 2, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeUint(reserved)))
		b = appendUint(b, 1, reserved)
	}
	return ids.Sign(reservation.Nonce(c.reservation.ID), b)
}
