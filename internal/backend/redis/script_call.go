package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// scriptCall is one run of a script: its arguments and its answer. Calls are reused. So a request allocates only the
// string of its keys, and the client's own objects for a command.
type scriptCall struct {
	args []any  // arguments of the command, pointing into the fields below
	text []byte // the bytes of the command on a lane

	scriptKeys
	counters []keyedCounter // one per key
	takeKeys []int          // the index of each take's key
	groups   []takeGroup
	sent     int // takes sent to the script: equal takes are one

	script   *scripts.Script
	reads    bool // the script changes nothing, but reservations may be settled
	single   bool // the script is for one take, or for many equal takes
	calendar bool // there are windows whose bounds are arguments
	// for a call whose first key is not the counter's: the counter, whose server has the keys; empty if not needed
	home   []byte
	packed packedArg // ARGV[1]

	reservationCall
	scriptAnswer
}

// scriptAnswer is the reply of a script, and the states in it.
type scriptAnswer struct {
	reply    []byte
	states   []backend.State
	tails    []uint32 // the memory that their Tails point to
	pointers []*backend.State
}

// keyedCounter is the counter under one key, as its first take describes it. Other takes of it may have other numbers:
// the form depends only on the algorithm and window, which are in the key, and if a log needs more room, the script
// asks for it.
type keyedCounter struct {
	limit *descriptor.Limit
	form  *backend.RedisForm
	room  int // maximum bytes for it in the reply
	head  int // index in groups, plus one, of the latest group that takes only from this counter

	request int // number of the latest request with a take from it

	reservations int // index in lists, plus one; 0 if reservations do not matter
	open         int // number of its list among those with takes that are not steps, or 0
	takes        int
	mixed        bool // whether it has more than one take, or one that is not a step
	settles      int  // reservations that the script may settle
}

// packedArg is an argument that the client writes without copying or boxing it.
type packedArg []byte

// MarshalBinary implements encoding.BinaryMarshaler for the client.
func (p *packedArg) MarshalBinary() ([]byte, error) { return *p, nil }

const (
	maxKeys  = 1<<16 - 1
	keepRoom = 1 << 16 // bytes of keys, takes or reply that a reused call may keep
)

var scriptCalls = sync.Pool{New: func() any { return new(scriptCall) }}

func (c *scriptCall) release() {
	if max(cap(c.keyText), cap(c.packed), cap(c.reservationArg), cap(c.operations), cap(c.reply), cap(c.text),
		2*cap(c.keyTable)) > keepRoom {
		return
	}
	c.reads = false
	clear(c.args)
	clear(c.keys)
	clear(c.counters)
	clear(c.groups)
	clear(c.reservations)
	scriptCalls.Put(c)
}

// takeGroup is the takes of one request that are settled together.
type takeGroup struct {
	takes    []backend.Take
	outcomes []backend.Outcome
	first    int // its takes' counters are scriptCall.takeKeys[first:]

	// Equal takes of many requests are sent to the script as one, if each is the only take of its group. The first of
	// these groups is sent: it has their number and is the head of a list of the others.
	sent  bool
	times int
	next  int // index in groups of the next one in the list; 0 at the end
}

// maxTimes is how many equal takes can be sent as one: the number has 16 bits.
const maxTimes = 1<<16 - 1

// terms are the settings of a call.
type terms struct {
	now        int64 // the caller's time or, with redisClock, an estimate of Redis' time
	redisClock bool
	entries    int           // entries of a log for which the reply must have room
	small      int           // number of reservations from which on a list is large
	large      bool          // whether there may be large lists
	lyft       bool          // whether there may be keys of descriptor.KeysLyft
	jitter     time.Duration // the longest extra time that those keys live
	routed     bool          // whether a proxy may route the call by its first key. All keys are then of one counter
}

// pack lays out the arguments for the takes of requests, and chooses the script.
func (c *scriptCall) pack(m terms, requests ...*backend.Request) error {
	shapes, each, err := c.addRequests(&m, requests)
	if err != nil {
		return err
	}
	c.home = c.home[:0]
	if m.routed {
		c.home = appendHome(c.home, &requests[0].Takes[0])
	}
	now := uint64(m.now)
	if m.redisClock {
		now = 0
	}
	c.packed = binary.LittleEndian.AppendUint64(c.packed[:0], now)
	c.single = c.sent == 1 && len(c.reserved) == 0
	switch {
	case len(c.reserved) > 0:
		return c.packReserving(&m, shapes)
	case c.single:
		c.packGroups(&m)
		c.choose(scripts.One(c.counters[0].form.Shape))
	case each && c.sent == len(c.keyEnds) && !c.calendar && !shapes.AskAgain():
		c.packEach(&m)
		c.choose(scripts.Each(shapes))
	default:
		c.packGroups(&m)
		c.choose(scripts.Many(shapes))
	}
	return nil
}

// addRequests finds the keys, counters and groups of requests. each reports whether every group has one take.
func (c *scriptCall) addRequests(m *terms, requests []*backend.Request) (shapes scripts.Set, each bool, err error) {
	clear(c.groups)
	c.scriptKeys.begin()
	c.reservationCall.begin(m.large)
	c.counters, c.takeKeys, c.groups = c.counters[:0], c.takeKeys[:0], c.groups[:0]
	c.calendar, each, c.sent = false, true, 0
	for n, r := range requests {
		for start := 0; start < len(r.Takes); {
			end := r.Group(start)
			g := takeGroup{takes: r.Takes[start:end], outcomes: r.Outcomes[start:end], first: len(c.takeKeys), sent: true,
				times: 1}
			step := isStep(g.takes)
			for i := range g.takes {
				shape, err := c.addTake(&g.takes[i], step, m)
				if err != nil {
					return shapes, each, err
				}
				shapes |= shape
			}
			c.combine(&g, n+1)
			each = each && len(g.takes) == 1
			if g.sent {
				c.sent += len(g.takes)
			}
			c.groups = append(c.groups, g)
			start = end
		}
	}
	return shapes, each, nil
}

// addTake adds a take with its key and counter. step: the take belongs to a group that one step of the script can
// settle.
func (c *scriptCall) addTake(t *backend.Take, step bool, m *terms) (scripts.Set, error) {
	if err := supported(t.Limit); err != nil {
		return 0, err
	}
	key, form := c.keyOf(t, m)
	k, err := c.addKey(key, t.Limit, form, max(m.entries, int(t.Limit.Requests)))
	if err != nil {
		return 0, err
	}
	if concernsReservations(t) {
		c.addReservations(k, t)
	}
	counter := &c.counters[k]
	counter.takes++
	counter.mixed = counter.mixed || !step || counter.takes > 1
	c.calendar = c.calendar || t.Limit.Window.Location != nil || form == &backend.LyftForm
	return scripts.Of(form.Shape), nil
}

// choose chooses the script.
func (c *scriptCall) choose(script *scripts.Script) {
	if len(c.home) > 0 {
		script = script.Routed()
	}
	c.script = script
}

// appendHome appends the key of a take's counter if the take itself has another key.
func appendHome(dst []byte, t *backend.Take) []byte {
	if t.Limit.Algorithm != descriptor.Penalties {
		return dst
	}
	counter, _ := descriptor.CutPenaltyKey(t.Key)
	return append(dst, counter...)
}

// supported returns an error for limits that no store can count.
func supported(l *descriptor.Limit) error {
	switch {
	case l.Window.Length() <= 0:
		return fmt.Errorf("a window of %v cannot be counted in", l.Window.Length())
	case !l.Compiled():
		return fmt.Errorf("a %v limit that was not compiled cannot be counted", l.Algorithm)
	}
	return nil
}

// combine adds a group of one take to the list of an earlier group with an equal take, if there is one. Requests that
// are in flight together have no fixed order, so equal takes may be moved next to each other. The takes of one request
// from one counter keep their order.
func (c *scriptCall) combine(g *takeGroup, request int) {
	if len(g.takes) != 1 || g.takes[0].Reservation != nil {
		for _, k := range c.takeKeys[g.first:] {
			c.counters[k].request = request
		}
		return
	}
	counter := &c.counters[c.takeKeys[g.first]]
	again := counter.request == request
	counter.request = request
	if counter.head > 0 && !again {
		head := &c.groups[counter.head-1]
		if t, u := &head.takes[0], &g.takes[0]; head.times < maxTimes && t.Hits == u.Hits && t.CountDenied == u.CountDenied &&
			(t.Limit == u.Limit || t.Limit.Requests == u.Limit.Requests && t.Limit.Burst == u.Limit.Burst &&
				t.Limit.Classes == u.Limit.Classes) {
			head.times++
			g.sent, g.next = false, head.next
			head.next = len(c.groups)
			return
		}
	}
	counter.head = len(c.groups) + 1
}

// packGroups adds the takes of all groups to the arguments.
func (c *scriptCall) packGroups(m *terms) {
	for i := range c.groups {
		if g := &c.groups[i]; g.sent {
			c.packGroup(g, m)
		}
	}
}

func (c *scriptCall) packGroup(g *takeGroup, m *terms) {
	for i := range g.takes {
		t := &g.takes[i]
		countDenied := byte(0)
		switch {
		case t.Guards && i+1 < len(g.takes):
			countDenied = guards
		case t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied):
			countDenied = 1
		}
		last := byte(0)
		switch {
		case i+1 == len(g.takes):
			last = lastOfGroup
		case g.takes[i+1].Member != t.Member:
			last = lastOfMember
		}
		c.packTake(t, c.takeKeys[g.first+i], countDenied, t.Vote, last, g.times, t.Hits, m)
	}
}

// guards marks a packed take of a penalty, in the place of the flag for counting denied hits.
const guards = 3

// Marks of the last takes of members and groups, for the script.
const (
	lastOfMember = 1
	lastOfGroup  = 2
)

// packTake adds a take to the arguments. k is the index of its key.
func (c *scriptCall) packTake(t *backend.Take, k int, countDenied byte, vote backend.Vote, last byte, times int,
	hits int64, m *terms) {
	b, form := c.packed, c.counters[k].form
	if c.reads {
		times = 0
	}
	if c.single {
		b = binary.LittleEndian.AppendUint16(b, uint16(times))
		b = append(b, countDenied)
	} else {
		b = binary.LittleEndian.AppendUint16(b, uint16(k+1))
		b = append(b, byte(form.Shape), countDenied, byte(vote), last)
		b = binary.LittleEndian.AppendUint16(b, uint16(times))
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(hits))
	c.packed = appendParameters(b, form, t.Limit, m)
}

// packEach adds all takes to the arguments, in runs of equal takes. The groups that are sent have the order of their
// counters.
func (c *scriptCall) packEach(m *terms) {
	var last *takeGroup
	for i, count := 0, 0; i < len(c.groups); i++ {
		g := &c.groups[i]
		if !g.sent {
			continue
		}
		if last != nil && count < maxKeys && last.equal(g) {
			count++
			binary.LittleEndian.PutUint16(c.packed[len(c.packed)-equalSize:], uint16(count))
			continue
		}
		last, count = g, 1
		t, form, times := &g.takes[0], c.counters[c.takeKeys[g.first]].form, g.times
		if c.reads {
			times = 0
		}
		b := append(c.packed, 1, 0, byte(form.Shape), 0)
		if t.CountDenied && t.Limit.Has(descriptor.SettingCountDenied) {
			b[len(b)-1] = 1
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(times))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.Hits))
		c.packed = appendParameters(b, form, t.Limit, m)
	}
}

// equalSize is the size in bytes of a run that packEach adds.
const equalSize = 2 + 1 + 1 + 2 + 5*8

// equal reports whether the only takes of two groups differ in nothing but their counters.
func (g *takeGroup) equal(o *takeGroup) bool {
	t, u := &g.takes[0], &o.takes[0]
	return t.Limit == u.Limit && t.Hits == u.Hits && t.CountDenied == u.CountDenied && g.times == o.times
}

// appendParameters appends a limit's capacity and the parameters of its form.
func appendParameters(b []byte, form *backend.RedisForm, l *descriptor.Limit, m *terms) []byte {
	p1, p2, p3 := form.Parameters(l, m.now, max(m.entries, int(l.Requests)))
	if form == &backend.LyftForm && m.jitter > 0 { // keeps the keys of a window from expiring all at the same time
		p3 += rand.N(m.jitter).Milliseconds()
	}
	b = binary.LittleEndian.AppendUint64(b, l.Capacity())
	b = binary.LittleEndian.AppendUint64(b, uint64(p1))
	b = binary.LittleEndian.AppendUint64(b, uint64(p2))
	return binary.LittleEndian.AppendUint64(b, uint64(p3))
}

// keyOf returns the current key of a take's counter in Redis, and the form of its state. The key is valid until the
// next call.
func (c *scriptCall) keyOf(t *backend.Take, m *terms) (key []byte, form *backend.RedisForm) {
	if t.Limit.Algorithm == descriptor.Penalties {
		c.key = appendPenaltyKey(c.key[:0], t.Key)
		return c.key, backend.RedisFormOf(t.Limit)
	}
	if m.lyft {
		if stem, ok := descriptor.CutLyftKey(t.Key); ok {
			start, _ := t.Limit.Window.Bounds(m.now)
			c.key = descriptor.AppendLyftKey(c.key[:0], stem, start)
			return c.key, &backend.LyftForm
		}
	}
	return t.Key, backend.RedisFormOf(t.Limit)
}

// addKey adds a take's key to the distinct keys, and returns its index.
func (c *scriptCall) addKey(key []byte, l *descriptor.Limit, form *backend.RedisForm, entries int) (k int, err error) {
	if k = c.find(key); k < 0 {
		if k = len(c.keyEnds); k == maxKeys {
			return 0, fmt.Errorf("more than %d counters in one request", maxKeys)
		}
		c.add(key)
		c.counters = append(c.counters, keyedCounter{limit: l, form: form, room: form.Room(l, entries)})
	}
	if c.counters[k].form.Shape != form.Shape {
		return 0, fmt.Errorf("the counter %q is kept in two ways", key)
	}
	c.takeKeys = append(c.takeKeys, k)
	return k, nil
}

// command returns EVALSHA or EVAL for this call, and makes room for the answer. A command that reads into our buffer is
// never sent twice by the client, regardless of its MaxRetries.
func (c *scriptCall) command(ctx context.Context, name, script string) *goredis.ZeroCopyStringCmd {
	counters := len(c.keyEnds)
	c.addReservationKeys()
	text, start := string(c.keyText), 0
	c.keys = c.keys[:0]
	if len(c.home) > 0 {
		c.keys = append(c.keys, string(c.home))
	}
	for _, end := range c.keyEnds {
		c.keys = append(c.keys, text[start:end])
		start = end
	}
	c.args = append(c.args[:0], name, script, len(c.keys))
	for k := range c.keys {
		c.args = append(c.args, &c.keys[k])
	}
	c.args = append(c.args, &c.packed)
	if len(c.reserved) > 0 {
		c.args = append(c.args, &c.reservationArg)
	}
	c.keyEnds, c.keyText = c.keyEnds[:counters], c.keyText[:c.keyEnds[counters-1]]
	c.makeRoom()
	return goredis.NewZeroCopyStringCmd(ctx, c.reply[:cap(c.reply)], c.args...)
}

// makeRoom makes room for the answer.
func (c *scriptCall) makeRoom() {
	// the time, the entries that retry reads, and the line end on the wire
	room := 8 + 4 + 2 + 1 + answerSize*len(c.reservations)
	for k := range c.counters {
		room += 4 + c.counters[k].room
	}
	c.reply = slices.Grow(c.reply[:0], room)
}

// sendOn sends EVALSHA for this call on a lane.
func (c *scriptCall) sendOn(ctx context.Context, lane *redisconn.Lane, deadline time.Time) error {
	c.makeRoom()
	reply, err := lane.Do(ctx, deadline, c.wire(), c.reply)
	if err != nil {
		return err
	}
	if c.reply = reply; len(reply) < 8 {
		return errReply
	}
	return nil
}

// wire returns the bytes of EVALSHA for this call, in the protocol of Redis.
func (c *scriptCall) wire() []byte {
	counters := len(c.keyEnds)
	c.addReservationKeys()
	keys, args := len(c.keyEnds), 1
	if len(c.home) > 0 {
		keys++
	}
	if len(c.reserved) > 0 {
		args++
	}
	b := append(c.text[:0], '*')
	b = append(strconv.AppendInt(b, int64(3+keys+args), 10), "\r\n$7\r\nevalsha\r\n"...)
	b = appendWord(b, c.script.Hash)
	b = appendWord(b, strconv.Itoa(keys))
	if len(c.home) > 0 {
		b = appendWord(b, c.home)
	}
	for k := range c.keyEnds {
		b = appendWord(b, c.keyAt(k))
	}
	b = appendWord(b, c.packed)
	if len(c.reserved) > 0 {
		b = appendWord(b, c.reservationArg)
	}
	c.keyEnds, c.keyText = c.keyEnds[:counters], c.keyText[:c.keyEnds[counters-1]]
	c.text = b
	return b
}

// appendWord appends a word of a command.
func appendWord[T ~string | ~[]byte](b []byte, word T) []byte {
	b = append(strconv.AppendInt(append(b, '$'), int64(len(word)), 10), "\r\n"...)
	return append(append(b, word...), "\r\n"...)
}

// retry reports whether the script did nothing and needs other arguments. The new arguments follow from the script's
// time and from the number of entries in the longest log.
func (c *scriptCall) retry() (now int64, entries int, wanted bool) {
	if now = int64(binary.LittleEndian.Uint64(c.reply)); now >= 0 {
		return 0, 0, false
	}
	if len(c.reply) < 12 {
		return -now, 0, true
	}
	return -now, int(binary.LittleEndian.Uint32(c.reply[8:])), true
}

// askWithLarge stands instead of a number of entries if the keys of large lists have to be named.
const askWithLarge = 1<<31 - 1

var errReply = errors.New("the script's answer is malformed")

var errFull = fmt.Errorf("%w: Redis' memory is full", backend.ErrUnavailable)

// room is the size of the states that the script returns if the longest log has some entries.
func (c *scriptCall) room(entries int) (total int) {
	for k := range c.counters {
		total += c.counters[k].form.Room(c.counters[k].limit, entries)
	}
	return total
}

// settle computes the outcomes from the states in the reply, and returns the time that decided. With errFull, takes
// that are not marked Failed have an answer nevertheless.
func (c *scriptCall) settle() (int64, error) {
	now, rest := int64(binary.LittleEndian.Uint64(c.reply)), c.reply[8:]
	c.states, c.tails = c.states[:0], c.tails[:0]
	for k := range c.counters {
		seen := rest
		if !c.single {
			if len(rest) < 4 {
				return 0, errReply
			}
			n := binary.LittleEndian.Uint32(rest)
			if rest = rest[4:]; uint64(n) > uint64(len(rest)) {
				return 0, errReply
			}
			seen, rest = rest[:n], rest[n:]
		}
		var s backend.State
		s, c.tails = c.counters[k].form.Decode(seen, c.counters[k].limit, now, c.tails)
		c.states = append(c.states, s)
	}
	var err error
	if rest, err = c.readReservations(rest); err != nil {
		return 0, err
	}
	c.pointers = c.pointers[:0]
	for _, k := range c.takeKeys {
		c.pointers = append(c.pointers, &c.states[k])
	}
	for i := range c.groups {
		if !c.groups[i].sent || c.reads {
			continue
		}
		for g := &c.groups[i]; ; g = &c.groups[g.next] { // each group in the list sees the state that the one before it left
			backend.Settle(g.takes, c.pointers[g.first:g.first+len(g.takes)], g.outcomes, backend.At(now))
			if g.next == 0 {
				break
			}
		}
	}
	if !c.single && len(rest) > 0 && c.unwritten() { // memory is full
		return now, errFull
	}
	return now, nil
}

// unwritten marks the takes that have no answer because nothing was written, and reports whether there are any. A
// denial is an answer, unless hits that were not written may be its reason.
func (c *scriptCall) unwritten() bool {
	lost := make([]bool, len(c.counters)) // hits that would have been added
	for i := range c.groups {
		g := &c.groups[i]
		if !g.changes() {
			continue
		}
		for n := range g.takes {
			lost[c.takeKeys[g.first+n]] = true
		}
	}
	failed := false
	for i := range c.groups {
		g := &c.groups[i]
		if !slices.ContainsFunc(c.takeKeys[g.first:g.first+len(g.takes)], func(k int) bool { return lost[k] }) {
			continue
		}
		failed = true
		g.fail()
	}
	return c.unwrittenPenalties() || failed
}

// unwrittenPenalties undoes the penalties that would have started: the limit itself still denies. It marks groups that
// only such a penalty may have denied, and reports whether there are any.
func (c *scriptCall) unwrittenPenalties() bool {
	var began map[int]bool // whether a counter's penalty would have started
	for i := range c.groups {
		g := &c.groups[i]
		for n := range g.takes {
			if o := &g.outcomes[n]; g.takes[n].Guards && !o.Failed && o.Used > o.Before {
				if began == nil {
					began = make(map[int]bool)
				}
				began[c.takeKeys[g.first+n]] = true
				*o = backend.Outcome{Allowed: true}
			}
		}
	}
	failed := false
	for i := range c.groups {
		g := &c.groups[i]
		for n := range g.takes {
			if began[c.takeKeys[g.first+n]] && !g.outcomes[n].Failed && !g.outcomes[n].Allowed {
				failed = true
				g.fail()
			}
		}
	}
	return failed
}

func (g *takeGroup) fail() {
	for n := range g.outcomes {
		g.outcomes[n] = backend.Outcome{Failed: true}
	}
}

// changes reports whether a group adds or gives back hits. Hits of a denial that are counted are not considered.
func (g *takeGroup) changes() bool {
	denied := backend.Denied(g.takes, g.outcomes)
	if len(g.takes) == 1 {
		denied = !g.outcomes[0].Allowed
	}
	return slices.ContainsFunc(g.takes, func(t backend.Take) bool {
		if h := t.Reservation; h != nil && h.Op != backend.OpReserve {
			return h.Result == backend.ReservationDone || h.Final && h.ChargeUnknown
		}
		return t.Hits < 0 || (t.Hits > 0 || t.Reservation != nil) && !denied
	})
}
