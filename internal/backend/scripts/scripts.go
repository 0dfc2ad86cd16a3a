// Package scripts holds the Lua that runs inside Redis.
//
// A script is put together from head.lua, one part for each Shape of counter that the call uses, and one.lua (for one take) or
// many.lua. So a call loads no code of algorithms that it does not use. The comment at the top of each file describes its
// arguments and its reply. Package redis packs the arguments and reads the reply.
//
// The pure functions of package backend define what happens to a counter, and the scripts do the same. The suite in backendtest
// compares the two step by step.
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
	Lyft     Shape = 'y' // fixed windows, each in a key of its own, as envoyproxy/ratelimit keeps them
)

// Set is a set of shapes.
type Set uint16

// Of returns the set of this shape alone.
func Of(s Shape) Set { return 1 << index(s) }

var parts = [...]struct {
	shape Shape
	file  string
	needs []string
}{
	{Fixed, "fixed.lua", nil},
	{FirstHit, "first_hit.lua", []string{"pair.lua", "digits.lua"}},
	{Sliding, "sliding.lua", []string{"digits.lua"}},
	{Precise, "precise.lua", nil},
	{Log, "log.lua", nil},
	{Bucket, "bucket.lua", nil},
	{Interval, "interval.lua", []string{"pair.lua"}},
	{Lyft, "lyft.lua", nil},
}

func index(s Shape) int {
	for i := range parts {
		if parts[i].shape == s {
			return i
		}
	}
	panic(fmt.Sprintf("no shape %q", byte(s)))
}

// Script is a script's source, and the hash by which Redis knows it.
type Script struct{ Text, Hash string }

//go:embed *.lua
var sources embed.FS

var (
	one, many [1 << len(parts)]atomic.Pointer[Script]
	replicas  atomic.Pointer[Script]
)

// One returns the script for one take of this shape.
func One(s Shape) *Script {
	return made(&one[Of(s)], func() string { return assemble(Of(s), "one.lua") })
}

// Many returns the script for takes of these shapes.
func Many(s Set) *Script { return made(&many[s], func() string { return assemble(s, "many.lua") }) }

// Clock returns a script that only reads the time. On a server without the TIME command it fails as the others do.
func Clock() *Script {
	return made(&one[0], func() string { return source("head.lua") + "return pack('<I8', now)\n" })
}

// Replicas returns the script that counts the processes that share a Redis.
func Replicas() *Script {
	return made(&replicas, func() string { return source("head.lua") + source("replicas.lua") })
}

func made(p *atomic.Pointer[Script], text func() string) *Script {
	if s := p.Load(); s != nil {
		return s
	}
	t := text()
	sum := sha1.Sum([]byte(t))
	p.CompareAndSwap(nil, &Script{Text: t, Hash: hex.EncodeToString(sum[:])})
	return p.Load()
}

func assemble(set Set, last string) string {
	var b strings.Builder
	b.WriteString(source("head.lua"))
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
	if last == "many.lua" {
		b.WriteString("local READ, TRY, WRITE = {}, {}, {}\n")
	}
	for i, p := range parts {
		switch {
		case set&(1<<i) == 0:
		case last == "many.lua":
			fmt.Fprintf(&b, "do\n%sREAD[%d], TRY[%[2]d], WRITE[%[2]d] = read, try, write\nend\n", source(p.file), p.shape)
		default:
			b.WriteString(source(p.file))
		}
	}
	b.WriteString(source(last))
	return b.String()
}

func source(file string) string {
	b, err := sources.ReadFile(file)
	if err != nil {
		panic(err)
	}
	return string(b)
}
