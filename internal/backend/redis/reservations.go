package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The reservations of a counter are a list (the scripts call it a book), in keys next to the counter's key: a string,
// or a hash and a sorted set if there are many (holds.lua, holds_large.lua). Requests that concern them share calls
// with other requests. Such a call runs a separate kind of script.
//
// Most reservations and commits are the only take of their group, and in their call the only one of their counter.
// These are packed as steps, which the script decides in a short loop.

const (
	settledPerTake = 8         // reservations that are settled for each take that concerns reservations of its counter
	mostSettled    = 64        // settled reservations of one counter in one call, at most
	mostReserving  = 1<<16 - 1 // takes of a group that reserve: the script numbers them in 16 bits
	takeSize       = 48        // size of a packed take
	answerSize     = 41        // most bytes of an answer about the reservation of a take
	runSize        = 2         // bytes in front of the limit of a run of steps
)

// fewReservations is how many reservations make a list large. The form of large lists costs less per reservation then,
// but several times as much for the first.
const fewReservations = 64

// The first byte of an answer.
const (
	noReservation = iota
	hasReservation
	tooMany
)

// answerSizes are the bytes that follow the first one.
var answerSizes = [...]int{noReservation: 0, hasReservation: 40, tooMany: 8}

// reservesHits marks a packed take of a reservation, in the place of the flag for counting denied hits. Its repeat
// count is then the number of the reservation in its group.
const reservesHits = 2

// Operations on a reservation, for the script.
const (
	doesReserve = iota
	doesReport
	doesCommit
	doesCommitOrCharge
	doesExtend
	beginsGroup = 128 // added for the first operation of a group
)

// reservationCall is the part of a call that concerns reservations.
type reservationCall struct {
	reserved []int // the counters with reservations, as indexes in counters
	// the reservations that takes make or change, in the order of the script's answers
	reservations   []*backend.Reservation
	reservationArg packedArg // ARGV[2], if there are lists
	large          bool      // the keys of large lists are named too

	runs       int                    // number of runs of steps
	run        int                    // start of the latest run in reservationArg; 0 before the first run
	open       int                    // number of lists with takes that are not steps
	operations []byte                 // operations of these takes: the end of reservationArg
	operated   []*backend.Reservation // their reservations
}

// begin clears all reservations.
func (c *reservationCall) begin(large bool) {
	clear(c.reservations)
	c.reserved, c.reservations, c.operated, c.large = c.reserved[:0], c.reservations[:0], c.operated[:0], large
}

// concernsReservations reports whether a take has to look at the reservations of its counter: it makes or changes a
// reservation, or may pass because some have expired.
func concernsReservations(t *backend.Take) bool {
	return t.Reservation != nil || t.Limit.Reservations != nil && t.Limit.Reservations.Release
}

// addReservations makes the call look at the reservations of the k-th counter for a take. Operations on reservations
// that expire as charged do not depend on other reservations that have expired: then only takes that reserve settle
// reservations.
func (c *scriptCall) addReservations(k int, t *backend.Take) {
	counter := &c.counters[k]
	if counter.reservations == 0 {
		c.reserved = append(c.reserved, k)
		counter.reservations = len(c.reserved)
	}
	if !changesReservation(t) || backend.ReservationBounds(t.Limit).Release {
		counter.settles = min(counter.settles+settledPerTake, mostSettled)
	}
}

// isStep reports whether a group can be packed as a step, if no other take of the call prevents it.
func isStep(takes []backend.Take) bool {
	t := &takes[0]
	if len(takes) > 1 || t.Reservation == nil || t.Limit.Reservations != nil && t.Limit.Reservations.Release {
		return false
	}
	switch t.Reservation.Op {
	case backend.OpReserve:
		return t.Hits > 0 && t.Reservation.Least <= 0
	case backend.OpCommit:
		return t.Reservation.Final
	default:
		return false
	}
}

// packReserving lays out the arguments of a script for reservations, and chooses the script.
func (c *scriptCall) packReserving(m *terms, shapes scripts.Set) error {
	c.beginReservations(m.small)
	for i := range c.groups {
		g := &c.groups[i]
		switch {
		case !g.sent:
		case g.takes[0].Reservation != nil && !c.counters[c.takeKeys[g.first]].mixed:
			c.packStep(g, m)
		case slices.ContainsFunc(g.takes, func(t backend.Take) bool { return t.Reservation != nil }):
			if err := c.packReservations(g, m); err != nil {
				return err
			}
		default:
			c.packGroup(g, m)
		}
	}
	c.endReservations(m)
	c.choose(scripts.Reservations(shapes, c.large))
	return nil
}

// beginReservations starts the arguments about reservations.
func (c *scriptCall) beginReservations(small int) {
	b := binary.LittleEndian.AppendUint16(c.reservationArg[:0], uint16(len(c.counters)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.reserved)))
	b = binary.LittleEndian.AppendUint16(b, uint16(small))
	c.reservationArg = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // number of runs and of open lists, and where these start
	c.operations, c.runs, c.run, c.open = c.operations[:0], 0, 0, 0
	for _, k := range c.reserved {
		if counter := &c.counters[k]; counter.mixed {
			c.open++
			counter.open = c.open
		}
	}
}

// packStep adds a group that is a step.
func (c *scriptCall) packStep(g *takeGroup, m *terms) {
	t, k := &g.takes[0], c.takeKeys[g.first]
	bounds := backend.ReservationBounds(t.Limit)
	at := len(c.reservationArg)
	b := append(c.reservationArg, 1, 0)
	b = c.appendBounds(b, c.counters[k].form, t.Limit, &bounds, m)
	if n := len(b) - at; c.run > 0 && bytes.Equal(c.reservationArg[c.run+runSize:c.run+n], b[at+runSize:]) {
		b = b[:at]
		binary.LittleEndian.PutUint16(b[c.run:], binary.LittleEndian.Uint16(b[c.run:])+1)
	} else {
		c.run = at
		c.runs++
	}
	does, hits := doesOf(t.Reservation), t.Hits
	if most := bounds.Largest(t.Limit); does == doesReserve && hits > most {
		hits = int64(t.Limit.Capacity()) + 1 // denied
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(k+1))
	b = binary.LittleEndian.AppendUint16(b, uint16(c.counters[k].reservations))
	b = append(b, does)
	b = append(b, t.Reservation.ID[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(hits))
	c.reservationArg = binary.LittleEndian.AppendUint64(b, uint64(t.Reservation.Lasts(t.Limit)))
	c.reservations = append(c.reservations, t.Reservation)
}

// appendBounds appends the letter of a form, the bounds of the reservations under a limit, and the parameters of the
// limit.
func (c *scriptCall) appendBounds(b []byte, form *backend.RedisForm, l *descriptor.Limit,
	bounds *descriptor.Reservations, m *terms) []byte {
	b = append(b, byte(form.Shape))
	b = binary.LittleEndian.AppendUint32(b, uint32(min(max(bounds.MaxOutstanding, 0), 1<<31)))
	b = binary.LittleEndian.AppendUint64(b, uint64(bounds.MaxTTL.Microseconds()))
	return appendParameters(b, form, l, m)
}

// endReservations adds the open lists and their operations after the steps.
func (c *scriptCall) endReservations(m *terms) {
	b := c.reservationArg
	binary.LittleEndian.PutUint16(b[6:], uint16(c.runs))
	binary.LittleEndian.PutUint16(b[8:], uint16(c.open))
	binary.LittleEndian.PutUint32(b[10:], uint32(len(b)+1)) // Lua counts from 1
	for _, k := range c.reserved {
		counter := &c.counters[k]
		if counter.open == 0 {
			continue
		}
		bounds := backend.ReservationBounds(counter.limit)
		release := byte(0)
		if bounds.Release {
			release = 1
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(k+1))
		b = binary.LittleEndian.AppendUint16(b, uint16(counter.reservations))
		b = append(b, release)
		b = binary.LittleEndian.AppendUint16(b, uint16(counter.settles))
		b = c.appendBounds(b, counter.form, counter.limit, &bounds, m)
	}
	c.reservationArg = append(b, c.operations...)
	c.reservations = append(c.reservations, c.operated...)
	clear(c.operated)
	c.operated = c.operated[:0]
}

// packReservations adds a group with takes that make or change reservations. Those that change one are not among the
// packed takes: they pass in any case.
func (c *scriptCall) packReservations(g *takeGroup, m *terms) error {
	anyPasses := false // a member that votes Any has nothing that could deny it
	for i := 0; i < len(g.takes); {
		end, votes, changes := i, false, true
		for ; end < len(g.takes) && g.takes[end].Member == g.takes[i].Member; end++ {
			if t := &g.takes[end]; t.Vote == backend.VoteAny {
				votes, changes = true, changes && changesReservation(t)
			}
		}
		anyPasses = anyPasses || votes && changes
		i = end
	}
	first, held, reserving := len(c.packed), len(c.operations), 0
	for i := range g.takes {
		t, k := &g.takes[i], c.takeKeys[g.first+i]
		hits, least := t.Hits, int64(0)
		countDenied, times := byte(0), 1
		switch {
		case t.Guards:
			countDenied = guards
		case t.Reservation == nil:
			if t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied) {
				countDenied = 1
			}
		case t.Reservation.Op == backend.OpReserve:
			if reserving++; reserving > mostReserving {
				return fmt.Errorf("more than %d reservations in one request", mostReserving)
			}
			countDenied, times = reservesHits, reserving
			bounds := backend.ReservationBounds(t.Limit)
			least = t.Reservation.Least
			if most := bounds.Largest(t.Limit); hits > most {
				if hits = most; least <= 0 || least > most {
					hits, least = int64(t.Limit.Capacity())+1, 0 // denied
				}
			}
		}
		if t.Reservation != nil {
			c.packOperation(t, k, least)
		}
		if changesReservation(t) {
			continue
		}
		vote := t.Vote
		if anyPasses && vote == backend.VoteAny {
			vote = backend.VoteNone
		}
		c.packTake(t, k, countDenied, vote, lastOf(g, i), times, hits, m)
	}
	c.operations[held+4+4+2] += beginsGroup
	// The start and the end of the group are known now. Lua counts from 1.
	for at := held; at < len(c.operations); at += operationSize {
		binary.LittleEndian.PutUint32(c.operations[at:], uint32(first+1))
		binary.LittleEndian.PutUint32(c.operations[at+4:], uint32(len(c.packed)-takeSize+1))
	}
	return nil
}

func changesReservation(t *backend.Take) bool {
	return t.Reservation != nil && t.Reservation.Op != backend.OpReserve
}

// lastOf reports whether the i-th take of a group is the last one of its member or of the group, among those that are
// packed.
func lastOf(g *takeGroup, i int) byte {
	for j := i + 1; j < len(g.takes); j++ {
		if changesReservation(&g.takes[j]) {
			continue
		}
		if g.takes[j].Member != g.takes[i].Member {
			return lastOfMember
		}
		return 0
	}
	return lastOfGroup
}

const operationSize = 4 + 4 + 2 + 1 + 16 + 8 + 8 + 8

// doesOf returns the script's code for an operation on a reservation.
func doesOf(h *backend.Reservation) byte {
	switch h.Op {
	case backend.OpExtend:
		return doesExtend
	case backend.OpCommit:
		switch {
		case !h.Final:
			return doesReport
		case h.ChargeUnknown:
			return doesCommitOrCharge
		default:
			return doesCommit
		}
	default:
		return doesReserve
	}
}

// packOperation adds the operation of a take on a reservation.
func (c *scriptCall) packOperation(t *backend.Take, k int, least int64) {
	h := t.Reservation
	b := append(c.operations, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(c.counters[k].open))
	b = append(b, doesOf(h))
	b = append(b, h.ID[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Lasts(t.Limit)))
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Hits))
	c.operations = binary.LittleEndian.AppendUint64(b, uint64(least))
	c.operated = append(c.operated, h)
}

// addReservationKeys adds the keys of lists to the keys of the counters.
func (c *scriptCall) addReservationKeys() {
	add := func(k int, kind string) {
		c.keyText = appendRecordKey(c.keyText, c.keyAt(k), kind)
		c.keyEnds = append(c.keyEnds, len(c.keyText))
	}
	for _, k := range c.reserved {
		add(k, reservationsKey)
	}
	if !c.large {
		return
	}
	for _, k := range c.reserved {
		add(k, byIDKey)
		add(k, endsKey)
	}
}

// readReservations decodes the script's answers about the reservations, and returns the rest of the reply.
func (c *scriptCall) readReservations(reply []byte) (rest []byte, err error) {
	for _, h := range c.reservations {
		h.Result, h.Granted, h.Expires, h.Stored = backend.ReservationDone, 0, 0, backend.StoredReservation{}
		if len(reply) < 1 {
			return nil, errReply
		}
		said := reply[0]
		reply = reply[1:]
		if int(said) >= len(answerSizes) || len(reply) < answerSizes[said] {
			return nil, errReply
		}
		field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(reply[8*i:])) }
		switch said {
		case hasReservation:
			h.Stored.Found = true
			h.Stored.ReservationState = backend.ReservationState{Charged: field(0), Reported: field(1), Mark: field(2),
				Expires: field(3), Keep: field(4)}
		case tooMany:
			h.Stored.SameID, h.Stored.FirstExpiry = backend.ReservationsOfOneID, field(0)
		}
		reply = reply[answerSizes[said]:]
	}
	return reply, nil
}
