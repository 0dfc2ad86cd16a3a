package server

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

const (
	reservationService = "ratelimitd.v1.ReservationService"
	reservationFile    = "ratelimitd/v1/reservations.proto"
)

// The numbers of ratelimitd.v1.Result.
const (
	resultDone    = 1
	resultUnknown = 2
)

// reservations is ratelimitd.v1.ReservationService. Like ShouldRateLimit, it decodes and encodes its messages without
// generated code.
type reservations struct {
	ids    *reservation.Signer
	bounds Requests
}

func describeReservations(to *transport.Services, d *deciding, ids *reservation.Signer) []*method {
	s := &reservations{ids, d.bounds}
	add := func(name string, decode func(*rateLimitCall, []byte, string) error,
		encode func(*rateLimitCall, []byte) ([]byte, error)) *method {
		m := newMethod(d, "/"+reservationService+"/"+name)
		m.decode, m.encode = decode, encode
		return m
	}
	methods := []*method{
		add("Reserve", s.readReserve, s.appendReserved),
		add("Commit", s.readCommit, s.appendCommitted),
		add("Cancel", s.readCancel, appendResult),
		add("Extend", s.readExtend, appendExtended),
	}
	describeMethods(to, reservationService, reservationFile, methods...)
	return methods
}

// begin turns a call into a step of a reservation.
func (c *rateLimitCall) begin(op limiter.ReservationOp) *limiter.Reservation {
	c.reservation = limiter.Reservation{Op: op}
	c.request.Reservation = &c.reservation
	return &c.reservation
}

func (s *reservations) readReserve(c *rateLimitCall, data []byte, text string) error {
	d := decoder{data: data, text: text, bounds: s.bounds}
	h := s.beginReserve(c)
	if err := d.reserve(&c.request, h); err != nil {
		return err
	}
	if h.TTL < 0 {
		return tooMuch("ttl", "it must not be negative")
	}
	return checkIDSize(&c.request)
}

// beginReserve turns a call into a reservation. Without a key for its id, nothing is reserved.
func (s *reservations) beginReserve(c *rateLimitCall) *limiter.Reservation {
	h := c.begin(limiter.Reserve)
	h.ID = limiter.ReservationID(reservation.NewNonce())
	if !s.ids.Ready() {
		h.Unready = reservation.ErrNoKey
	}
	return h
}

func (s *reservations) readCommit(c *rateLimitCall, data []byte, text string) error {
	const message = "ratelimitd.v1.CommitRequest"
	d := decoder{data: data, text: text, end: len(data), bounds: s.bounds}
	id, final := "", true
	var actual []limiter.Descriptor
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return malformed(message)
		}
		var err error
		switch {
		case num == 1 && typ == protowire.BytesType:
			id, ok = d.id()
		case num == 2 && typ == protowire.BytesType:
			if len(actual) >= s.bounds.MaxDescriptors {
				return tooMuch("actual", "more than %d in one request", s.bounds.MaxDescriptors)
			}
			actual = append(actual, limiter.Descriptor{})
			ok, err = d.amount(&actual[len(actual)-1], "actual")
		case num == 3 && typ == protowire.VarintType:
			var v uint64
			v, ok = d.varint()
			final = v != 0
		default:
			ok = d.skip(num, typ)
		}
		if err != nil {
			return err
		}
		if !ok {
			return malformed(message)
		}
	}
	if err := s.open(c, id, limiter.Commit); err != nil {
		return err
	}
	c.reservation.Final = final
	return c.use(actual)
}

// use replaces the reserved hits by the used ones: one amount for all descriptors, or one for each. Without amounts,
// the reserved hits count.
func (c *rateLimitCall) use(actual []limiter.Descriptor) error {
	all := c.request.Descriptors
	if n := len(actual); n > 1 && n != len(all) {
		return tooMuch("actual",
			"%d amounts, and the reservation has %d descriptors: send one amount for all of them, or one for each", n, len(all))
	}
	for i := range all {
		switch {
		case len(actual) == 1:
			all[i].Hits, all[i].Amounts = actual[0].Hits, actual[0].Amounts
		case len(actual) > 1:
			all[i].Hits, all[i].Amounts = actual[i].Hits, actual[i].Amounts
		}
	}
	return nil
}

func (s *reservations) readCancel(c *rateLimitCall, data []byte, text string) error {
	id, _, err := s.readID(data, text, "ratelimitd.v1.CancelRequest")
	if err != nil {
		return err
	}
	if err := s.open(c, id, limiter.Commit); err != nil {
		return err
	}
	c.reservation.Final = true
	return c.use([]limiter.Descriptor{{}})
}

func (s *reservations) readExtend(c *rateLimitCall, data []byte, text string) error {
	id, ttl, err := s.readID(data, text, "ratelimitd.v1.ExtendRequest")
	if err != nil {
		return err
	}
	if ttl < 0 {
		return tooMuch("ttl", "it must not be negative")
	}
	if err := s.open(c, id, limiter.Extend); err != nil {
		return err
	}
	c.reservation.TTL = ttl
	return c.use([]limiter.Descriptor{{}})
}
