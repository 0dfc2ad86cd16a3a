package server

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// maxTTL is the longest lifetime that is accepted. Rules limit it further.
const maxTTL = 10 * 365 * 24 * time.Hour

func malformed(message string) error {
	return &limiter.InvalidError{Message: "malformed " + message}
}

// reserve decodes a ratelimitd.v1.ReserveRequest, from a message or from an id.
func (d *decoder) reserve(req *limiter.Request, h *limiter.Reservation) error {
	d.end = len(d.data)
	ok, err := d.amounted(req, func(num protowire.Number, typ protowire.Type) (ok bool) {
		switch {
		case num == 4 && typ == protowire.BytesType:
			h.TTL, ok = d.duration(h.TTL)
		case num == 5 && typ == protowire.VarintType:
			h.Least, ok = d.varint()
		default:
			ok = d.skip(num, typ)
		}
		return ok
	})
	if err == nil && !ok {
		return malformed("ratelimitd.v1.ReserveRequest")
	}
	return err
}

// amounted decodes the common fields of ratelimitd.v1.ReserveRequest and DecideRequest, and calls other for the rest.
// It returns false if they are malformed.
func (d *decoder) amounted(req *limiter.Request, other func(protowire.Number,
	protowire.Type) bool) (ok bool, err error) {
	req.Domain, req.Hits, req.Purpose, req.Descriptors = "", 0, limiter.Count, req.Descriptors[:0]
	whole := limiter.Descriptor{Hits: 1} // amount for descriptors without one
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return false, nil
		}
		var err error
		switch {
		case num == 1 && typ == protowire.BytesType:
			if req.Domain, ok = d.str(); d.tooLong {
				err = tooMuch("domain", "more than %d bytes", d.bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			if len(req.Descriptors) >= d.bounds.MaxDescriptors {
				return false, tooMuch("descriptors", "more than %d in one request", d.bounds.MaxDescriptors)
			}
			ok, err = d.ownDescriptor(addDescriptor(req), len(req.Descriptors)-1)
		case num == 3 && typ == protowire.BytesType:
			if !whole.HasHits {
				whole.Hits, whole.HasHits = 0, true
			}
			ok, err = d.amount(&whole, "amount")
		default:
			ok = other(num, typ)
		}
		if !ok || err != nil {
			return false, err
		}
	}
	for i := range req.Descriptors {
		if to := &req.Descriptors[i]; !to.HasHits {
			to.HasHits, to.Hits, to.Amounts = true, whole.Hits, whole.Amounts
		}
	}
	return true, nil
}

// ownDescriptor decodes a ratelimitd.v1.Descriptor.
func (d *decoder) ownDescriptor(to *limiter.Descriptor, index int) (ok bool, err error) {
	outer, ok := d.enter()
	if !ok {
		return false, nil
	}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return false, nil
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if len(to.Entries) >= d.bounds.MaxEntries {
				return false, tooMuch(entriesOf(index), "more than %d", d.bounds.MaxEntries)
			}
			var e descriptor.Entry
			if e, ok = d.entry(); ok {
				to.Entries = append(to.Entries, e)
			}
			if d.tooLong {
				return false, tooMuch(entriesOf(index), "a key or a value of more than %d bytes", d.bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			to.HasHits = true
			ok, err = d.amount(to, "descriptors.amount")
		default:
			ok = d.skip(num, typ)
		}
		if !ok || err != nil {
			return false, err
		}
	}
	d.end = outer
	return true, nil
}

// amount decodes a ratelimitd.v1.Amount into the hits and amounts of a descriptor.
func (d *decoder) amount(to *limiter.Descriptor, field string) (ok bool, err error) {
	outer, ok := d.enter()
	if !ok {
		return false, nil
	}
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return false, nil
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			to.Hits, ok = d.varint()
		case num == 2 && typ == protowire.BytesType:
			if len(to.Amounts) >= descriptor.MaxWeights {
				return false, tooMuch(field, "more than %d kinds", descriptor.MaxWeights)
			}
			var a descriptor.Amount
			if a, ok = d.units(); ok {
				to.Amounts = addAmount(to.Amounts, a)
			}
			if d.tooLong {
				return false, tooMuch(field, "a kind of more than %d bytes", d.bounds.MaxTextBytes)
			}
		default:
			ok = d.skip(num, typ)
		}
		if !ok {
			return false, nil
		}
	}
	d.end = outer
	return true, nil
}

// addAmount adds an entry of a map. The last one of each name counts.
func addAmount(all []descriptor.Amount, a descriptor.Amount) []descriptor.Amount {
	for i := range all {
		if all[i].Name == a.Name {
			all[i] = a
			return all
		}
	}
	return append(all, a)
}

// units decodes an entry of Amount.units.
func (d *decoder) units() (a descriptor.Amount, ok bool) {
	ok = d.fields(func(num protowire.Number, typ protowire.Type) (ok bool) {
		switch {
		case num == 1 && typ == protowire.BytesType:
			a.Name, ok = d.str()
		case num == 2 && typ == protowire.VarintType:
			a.Units, ok = d.varint()
		default:
			ok = d.skip(num, typ)
		}
		return ok
	})
	return a, ok
}

// duration decodes a google.protobuf.Duration, cut to maxTTL. before is the value of an earlier field of the same
// number: repeated messages are merged.
func (d *decoder) duration(before time.Duration) (time.Duration, bool) {
	all := wireDuration{int64(before / time.Second), int32(before % time.Second)}
	if !d.wireDuration(&all) {
		return 0, false
	}
	return time.Duration(max(-1, min(all.seconds, int64(maxTTL/time.Second))))*time.Second + time.Duration(all.nanos), true
}
