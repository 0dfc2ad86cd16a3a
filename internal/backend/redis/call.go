package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// call is one run of the script: what it is given and what it answered. Calls are reused; a request then costs the
// string of its keys, and what the client needs to send a command.
type call struct {
	args []any // of the command, pointing into the fields below

	text  []byte // the distinct keys, one after the other
	ends  []int  // where each ends in text
	keys  []string
	index map[string]int // the keys, when there are many

	packed  packed  // ARGV[1]
	lengths []int64 // of each counter's window, in microseconds
	counter []int   // which key each take has

	reply    []byte // 8 bytes for the time and for each counter
	states   []backend.State
	pointers []*backend.State
}

// packed is an argument that reaches the connection without being copied or boxed.
type packed []byte

// MarshalBinary is how the client asks an argument for its bytes.
func (p *packed) MarshalBinary() ([]byte, error) { return *p, nil }

const (
	manyKeys = 16 // from here on keys are looked up in a map
	maxKeys  = 1<<16 - 1
	keepRoom = 1 << 16 // bytes of keys, or of takes, that a reused call may hold on to
)

var calls = sync.Pool{New: func() any { return &call{index: make(map[string]int)} }}

func (c *call) release() {
	if max(cap(c.text), cap(c.packed)) > keepRoom {
		return
	}
	clear(c.args)
	clear(c.keys)
	clear(c.index)
	c.text, c.ends, c.lengths, c.counter = c.text[:0], c.ends[:0], c.lengths[:0], c.counter[:0]
	calls.Put(c)
}

// pack lays out the script's arguments for the takes of a request. now is 0 if Redis' clock decides.
func (c *call) pack(now int64, r *backend.Request) error {
	b := binary.LittleEndian.AppendUint64(c.packed[:0], uint64(now))
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		vote := r.Takes[start].Vote
		for i := start; i < end; i++ {
			t := &r.Takes[i]
			if err := supported(t.Limit); err != nil {
				return err
			}
			k, err := c.add(t)
			if err != nil {
				return err
			}
			if i > start && t.Member != r.Takes[i-1].Member {
				vote = t.Vote
			}
			last := byte(0)
			switch {
			case i+1 == end:
				last = 2
			case r.Takes[i+1].Member != t.Member:
				last = 1
			}
			countDenied := byte(0)
			if t.CountDenied {
				countDenied = 1
			}
			b = binary.LittleEndian.AppendUint16(b, uint16(k+1))
			b = append(b, 'f', countDenied, byte(vote), last)
			b = binary.LittleEndian.AppendUint64(b, uint64(c.lengths[k]))
			b = binary.LittleEndian.AppendUint32(b, t.Limit.Requests)
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Hits))
		}
		start = end
	}
	c.packed = b
	return nil
}

// add returns the index of a take's key among the distinct keys.
func (c *call) add(t *backend.Take) (int, error) {
	k := c.find(t.Key)
	if k < 0 {
		if k = len(c.ends); k == maxKeys {
			return 0, fmt.Errorf("more than %d counters in one request", maxKeys)
		}
		c.text = append(c.text, t.Key...)
		c.ends = append(c.ends, len(c.text))
		c.lengths = append(c.lengths, t.Limit.Window.Length().Microseconds())
		if len(c.ends) > manyKeys {
			c.index[string(t.Key)] = k
		}
	}
	c.counter = append(c.counter, k)
	return k, nil
}

func (c *call) find(key []byte) int {
	start := 0
	for k, end := range c.ends[:min(len(c.ends), manyKeys)] {
		if bytes.Equal(c.text[start:end], key) {
			return k
		}
		start = end
	}
	if len(c.ends) > manyKeys {
		if k, ok := c.index[string(key)]; ok {
			return k
		}
	}
	return -1
}

// command returns the arguments of EVALSHA or EVAL for this call, and makes room for the answer.
func (c *call) command(name, script string) []any {
	text, start := string(c.text), 0
	c.keys = c.keys[:0]
	for _, end := range c.ends {
		c.keys = append(c.keys, text[start:end])
		start = end
	}
	c.args = append(c.args[:0], name, script, len(c.keys))
	for k := range c.keys {
		c.args = append(c.args, &c.keys[k])
	}
	c.args = append(c.args, &c.packed)
	c.reply = slices.Grow(c.reply[:0], c.replySize()+2) // and the line end that follows it on the wire
	return c.args
}

func (c *call) replySize() int { return 8 * (1 + len(c.ends)) }

// settle finds the outcomes from the states in the reply.
func (c *call) settle(r *backend.Request) {
	now := int64(binary.LittleEndian.Uint64(c.reply))
	c.states = c.states[:0]
	for k, length := range c.lengths {
		value := int64(binary.LittleEndian.Uint64(c.reply[8*(k+1):]))
		c.states = append(c.states, fixedWindowState(value, now, length))
	}
	c.pointers = c.pointers[:0]
	for _, k := range c.counter {
		c.pointers = append(c.pointers, &c.states[k])
	}
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		backend.Settle(r.Takes[start:end], c.pointers[start:end], r.Outcomes[start:end], now)
		start = end
	}
}
