package intake

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// The frames found are the same, however the bytes are cut into pieces.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire bytes.Buffer
		wire.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&wire, nil)
		framer.AllowIllegalWrites = true
		want, wantCalls, continuations, bad := 0, 0, 0, false
		for range rapid.IntRange(0, 20).Draw(t, "frames") {
			size := rapid.IntRange(0, 300).Draw(t, "size")
			payload := []byte(strings.Repeat("x", size))
			var err error
			if bad {
				break
			}
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				err, want, continuations = framer.WriteData(1, false, payload), want+size, 0
			case 1:
				err, continuations = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: payload}), 0
				wantCalls++
			case 2:
				for range rapid.IntRange(1, 40).Draw(t, "continuations") {
					err = errors.Join(err, framer.WriteContinuation(1, false, nil))
					continuations++
				}
				bad = continuations > maxContinuations
			default:
				err, continuations = framer.WritePing(false, [8]byte{}), 0
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		f := frameScanner{skip: prefaceSize}
		got, calls := 0, 0
		var failed error
		for rest := wire.Bytes(); len(rest) > 0 && failed == nil; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			var data, begun int
			data, begun, failed = f.scan(rest[:n])
			calls += begun
			got += data
			rest = rest[n:]
		}
		if got != want || calls != wantCalls || (failed != nil) != bad {
			t.Fatalf("%d bytes, %d calls, %v; want %d, %d, failed: %v", got, calls, failed, want, wantCalls, bad)
		}
	})
}

// Data that is not HTTP/2 is also read as frames, until the transport has refused it. No data may panic.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(http2.ClientPreface+"\x00\x00\x00\x09\x00\x00\x00\x00\x01"), 3)
	f.Fuzz(func(t *testing.T, wire []byte, piece int) {
		whole, pieces := frameScanner{skip: prefaceSize}, frameScanner{skip: prefaceSize}
		want, wantCalls, wantErr := whole.scan(wire)
		if wantErr != nil {
			return
		}
		piece = max(1, min(piece, len(wire)))
		got, calls := 0, 0
		for len(wire) > 0 {
			n := min(piece, len(wire))
			data, begun, err := pieces.scan(wire[:n])
			if err != nil {
				t.Fatal(err)
			}
			got, calls = got+data, calls+begun
			wire = wire[n:]
		}
		if got != want || calls != wantCalls {
			t.Fatalf("%d bytes and %d calls in pieces, %d and %d at once", got, calls, want, wantCalls)
		}
	})
}
