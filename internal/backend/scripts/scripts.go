// Package scripts holds the Lua that runs inside Redis.
//
// A script is put together from head.lua, states.lua, one part for each Shape of counter that the call uses, and one
// of: one.lua (for one take), each.lua (for takes that do not affect each other), or many.lua with votes.lua and
// written.lua. A script for one take reads before states.lua (one_read.lua), and returns there if it is the usual take
// of a fixed window (fixed_usual.lua). If some takes concern reservations, holds.lua, holds_open.lua and
// holds_written.lua replace written.lua, and each part includes the code after its line "For scripts with
// reservations". So a call loads no code that it does not use. The comment at the top of each file describes its
// arguments and its reply. Package redis packs the arguments and reads the reply.
//
// The pure functions of package backend define what happens to a counter, and the scripts do the same. The suite in
// backendtest compares the two step by step.
//
// The scripts need Redis 6.2 or a compatible server: SET with PXAT, and Lua's struct library. They call no
// deprecated command, touch no key that is not in KEYS, and read the clock once. All functions may be called
// concurrently.
package scripts

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
)

// Shape is one way to keep a counter. In a packed take, this letter selects the part of the script that handles it.
type Shape byte

// The shapes.
const (
	Fixed    Shape = 'f' // fixed windows on the clock or a calendar
	FirstHit Shape = 'h' // fixed windows from the first hit
	Sliding  Shape = 's' // sliding windows of precision 1
	Precise  Shape = 'p' // sliding windows of a higher precision
	Log      Shape = 'l' // sliding logs
	Bucket   Shape = 'g' // buckets that are refilled or leak continuously
	Interval Shape = 'i' // buckets that are refilled at intervals
	InFlight Shape = 'c' // concurrency limits
	Lyft     Shape = 'y' // fixed windows, with one key for each window, as envoyproxy/ratelimit keeps them
	Penalty  Shape = 'x' // penalties
	Shared   Shape = 'k' // fixed windows that classes share
)

// Set is a set of shapes.
type Set uint16

// Of returns the set that has only this shape.
func Of(s Shape) Set { return 1 << index(s) }

type part struct {
	shape Shape
	files []string // order matters: a function in a later file replaces the function of the same name in an earlier one
	needs []string // files that come before those of all parts, each once
}

var parts = [...]part{
	{Fixed, []string{"fixed.lua"}, nil},
	{FirstHit, []string{"first_hit.lua"}, []string{"pair.lua", "digits.lua"}},
	{Sliding, []string{"sliding.lua"}, []string{"digits.lua"}},
	{Precise, []string{"precise.lua"}, nil},
	{Log, []string{"log.lua"}, nil},
	{InFlight, []string{"log.lua", "concurrency.lua"}, nil},
	{Bucket, []string{"bucket.lua"}, []string{"pair.lua"}},
	{Interval, []string{"interval.lua"}, []string{"pair.lua"}},
	{Lyft, []string{"lyft.lua"}, nil},
	{Penalty, []string{"penalty.lua"}, nil},
	{Shared, []string{"shared_window.lua"}, nil},
}

func index(s Shape) int {
	for i := range parts {
		if parts[i].shape == s {
			return i
		}
	}
	panic(fmt.Sprintf("no shape %q", byte(s)))
}

// Script is a script's source, and the hash by which Redis finds it.
type Script struct {
	Text, Hash string

	routed atomic.Pointer[Script]
}

// Routed returns the script with one more key, before the others: the counter that they belong to. A proxy sends a
// script to the server of its first key.
func (s *Script) Routed() *Script {
	return made(&s.routed, func() string { return "table.remove(KEYS, 1)\n" + s.Text })
}

//go:embed *.lua
var sources embed.FS

var (
	one, each, many, reservations, largeReservations [1 << len(parts)]atomic.Pointer[Script]
	replicas, numbered, usage                        atomic.Pointer[Script]
	route, forget                                    atomic.Pointer[Script]
)

// One returns the script for one take of this shape.
func One(s Shape) *Script {
	return made(&one[Of(s)], func() string { return assemble(Of(s), ofOne) })
}

// Each returns the script for takes of these shapes, each the only one of its counter and its group. None may AskAgain.
func Each(s Set) *Script { return made(&each[s], func() string { return assemble(s, ofEach) }) }

// AskAgain reports whether the read of a counter of one of these shapes may ask for other arguments.
func (s Set) AskAgain() bool { return s&(Of(Log)|Of(InFlight)|Of(Lyft)|Of(Penalty)) != 0 }

// Many returns the script for takes of these shapes.
func Many(s Set) *Script { return made(&many[s], func() string { return assemble(s, ofMany) }) }

// Reservations returns the script for takes of these shapes, of which some concern reservations. If a list of
// reservations is large or becomes large, it asks for another call, with the script for large lists.
func Reservations(s Set, large bool) *Script {
	if large {
		return made(&largeReservations[s], func() string { return assemble(s, ofLargeReservations) })
	}
	return made(&reservations[s], func() string { return assemble(s, ofReservations) })
}

// Clock returns a script that only reads the time. On a server without the TIME command it fails as the others do.
func Clock() *Script {
	return made(&one[0], func() string { return source("head.lua") + "return pack('<I8', now)\n" })
}

// Replicas returns the script that counts the replicas that share a Redis.
func Replicas() *Script {
	return made(&replicas, func() string { return source("head.lua") + source("states.lua") + source("replicas.lua") })
}

// Numbered returns the script that adds a numbered message to a stream.
func Numbered() *Script { return made(&numbered, func() string { return source("numbered.lua") }) }

// Usage returns the script that adds texts to a set of the index of usage.
func Usage() *Script { return made(&usage, func() string { return source("usage.lua") }) }

// Route returns the script that tells whether keys lead to one server.
func Route() *Script { return made(&route, func() string { return source("route.lua") }) }

// Forget returns the script that deletes keys of a counter.
func Forget() *Script { return made(&forget, func() string { return source("forget.lua") }) }

func made(p *atomic.Pointer[Script], text func() string) *Script {
	if s := p.Load(); s != nil {
		return s
	}
	t := text()
	sum := sha1.Sum([]byte(t))
	p.CompareAndSwap(nil, &Script{Text: t, Hash: hex.EncodeToString(sum[:])})
	return p.Load()
}

// kind is the purpose of a script.
type kind int

const (
	ofOne kind = iota
	ofEach
	ofMany
	ofReservations
	ofLargeReservations
)

// assemble returns the script of a kind for these shapes.
func assemble(set Set, k kind) string {
	var b strings.Builder
	b.WriteString(source("head.lua"))
	if k == ofOne {
		b.WriteString(source("one_read.lua"))
		if set == Of(Fixed) {
			b.WriteString(source("fixed_usual.lua"))
		}
	}
	b.WriteString(source("states.lua"))
	added := map[string]bool{}
	for i, p := range parts {
		if set&(1<<i) == 0 {
			continue
		}
		for _, file := range p.needs {
			if !added[file] {
				added[file] = true
				b.WriteString(source(file))
			}
		}
	}
	if k != ofOne {
		b.WriteString("local READ, TRY, WRITE, NEARER = {}, {}, {}, {}\n")
	}
	if k >= ofReservations {
		b.WriteString("local ADJUST = {}\n")
	}
	for i, p := range parts {
		if set&(1<<i) == 0 {
			continue
		}
		if k == ofOne {
			b.WriteString(p.source(false))
			continue
		}
		fmt.Fprintf(&b, "do\n%sREAD[%d], TRY[%[2]d], WRITE[%[2]d], NEARER[%[2]d] = read, try, write, nearer\n",
			p.source(false), p.shape)
		if adjust := p.source(true); k >= ofReservations && adjust != "" {
			fmt.Fprintf(&b, "%sADJUST[%d] = adjust\n", adjust, p.shape)
		}
		b.WriteString("end\n")
	}
	switch k {
	case ofOne:
		b.WriteString(source("one.lua"))
	case ofEach:
		b.WriteString("local counters, read_keys = #KEYS, #KEYS\n" + source("values.lua") + source("each.lua"))
	case ofMany:
		b.WriteString("local counters, read_keys, from, to = #KEYS, #KEYS, 9, #packed\n" +
			source("values.lua") + source("many.lua") + source("votes.lua") + source("written.lua"))
	case ofReservations, ofLargeReservations:
		b.WriteString("local counters, book_count = struct.unpack('<I2I2', ARGV[2])\nlocal read_keys = counters + " +
			"book_count\n" + source("values.lua") + source("many.lua") + source("holds.lua") +
			"local function decide(packed, from, to)\n" + source("votes.lua") + "end\n" + source("holds_open.lua"))
		if k == ofLargeReservations {
			b.WriteString(source("holds_large.lua"))
		}
		b.WriteString(source("holds_written.lua"))
	}
	return b.String()
}

// source returns the code of this part that every script includes, or the code that only scripts with reservations
// include.
func (p *part) source(reservations bool) string {
	var b strings.Builder
	for _, file := range p.files {
		always, more, _ := strings.Cut(source(file), "\n-- For scripts with reservations.\n")
		if reservations {
			always = more
		}
		b.WriteString(always)
	}
	return b.String()
}

func source(file string) string {
	b, err := sources.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return string(b)
}
