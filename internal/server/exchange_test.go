package server

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// A client that sends a message byte by byte must not make grpc-go use a buffer for each byte.
func TestReportByteByByte(t *testing.T) {
	message := bytes.Repeat([]byte("x"), 40_000)
	sent := append([]byte{0, 0, 0, 40_000 >> 8, 40_000 & 0xff}, message...)
	x := &exchange{
		body: io.NopCloser(iotest.OneByteReader(bytes.NewReader(sent))), most: 1 << 20, many: true,
		used: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	var got []byte
	buffers := 0
	for p := make([]byte, 16<<10); len(got) < len(sent); buffers++ {
		n, err := exchangeBody{x}.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p[:n]...)
	}
	if buffers > 5+3 || !bytes.Equal(got, sent) {
		t.Errorf("%d buffers with %d bytes", buffers, len(got))
	}
}

// turns records how many bytes are held when a turn ends.
type turns struct {
	answering
	x     *exchange
	ended []int64
}

func (t *turns) TakeTurn() (done func()) {
	return func() { t.ended = append(t.ended, t.x.held.Load()) }
}

// A compressed message reaches grpc-go decompressed, and counts as held with its whole size before another one is decompressed. One that
// cannot be decompressed is left to grpc-go, which says so.
func TestCompressedMessageReachesGRPCUnzipped(t *testing.T) {
	zipped := func(plain []byte) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(plain) // memory does not fail
		_ = w.Close()
		return b.Bytes()
	}
	framed := func(flag byte, message []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(message))), message...)
	}
	plain := bytes.Repeat([]byte("0123456789"), 10_000)
	for name, c := range map[string]struct {
		sent, want []byte
		held       []int64 // at the end of each turn
	}{
		"two messages": {
			append(framed(1, zipped(plain)), framed(1, zipped([]byte("x")))...), append(framed(0, plain), framed(0, []byte("x"))...), []int64{int64(len(plain)), 1},
		},
		"an empty one":     {framed(1, zipped(nil)), framed(0, nil), []int64{0}},
		"not compressed":   {framed(0, plain), framed(0, plain), nil},
		"not gzip":         {framed(1, []byte("hello")), framed(1, []byte{0}), []int64{1}},
		"nothing":          {framed(1, nil), framed(1, []byte{0}), []int64{1}},
		"part of gzip":     {framed(1, zipped(plain)[:50]), framed(1, []byte{0}), []int64{1}},
		"part of a prefix": {[]byte{1, 0}, []byte{1, 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			x := &exchange{
				body: io.NopCloser(iotest.OneByteReader(bytes.NewReader(c.sent))), zipped: true, most: 1 << 20, many: true,
				used: make(chan struct{}, 1), closed: make(chan struct{}),
			}
			all := &turns{x: x}
			x.answering = all
			var got []byte
			var err error
			for p := make([]byte, 16<<10); err == nil; {
				x.next()
				var n int
				n, err = exchangeBody{x}.Read(p)
				got = append(got, p[:n]...)
			}
			if !errors.Is(err, io.EOF) || !bytes.Equal(got, c.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(c.want))
			}
			if !slices.Equal(all.ended, c.held) || x.held.Load() != 0 {
				t.Errorf("held when a turn ended: %v, want %v; in the end: %d", all.ended, c.held, x.held.Load())
			}
		})
	}
}

// A compressed message that ends too early is an error, and nothing of it is decompressed.
func TestPartOfACompressedMessage(t *testing.T) {
	x := &exchange{
		body: io.NopCloser(strings.NewReader("\x01\x00\x00\x00\x40hello")), zipped: true, most: 1 << 20,
		used: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	if n, err := (exchangeBody{x}).Read(make([]byte, 16<<10)); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
