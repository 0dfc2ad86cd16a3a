package server

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
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

// turns lets everybody decompress at once.
type turns struct{ answering }

func (turns) Decode() func() { return func() {} }

// A compressed message reaches grpc-go decompressed. One that cannot be decompressed is left to grpc-go, which says so.
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
	for name, c := range map[string]struct{ sent, want []byte }{
		"two messages":      {append(framed(1, zipped(plain)), framed(1, zipped([]byte("x")))...), append(framed(0, plain), framed(0, []byte("x"))...)},
		"an empty one":      {framed(1, zipped(nil)), framed(0, nil)},
		"not compressed":    {framed(0, plain), framed(0, plain)},
		"not gzip":          {framed(1, []byte("hello")), framed(1, []byte{0})},
		"nothing":           {framed(1, nil), framed(1, []byte{0})},
		"part of gzip":      {framed(1, zipped(plain)[:50]), framed(1, []byte{0})},
		"part of a prefix":  {[]byte{1, 0}, []byte{1, 0}},
		"part of a message": {framed(1, zipped(plain))[:50], nil},
	} {
		t.Run(name, func(t *testing.T) {
			x := &exchange{
				answering: turns{}, body: io.NopCloser(iotest.OneByteReader(bytes.NewReader(c.sent))), zipped: true, most: 1 << 20, many: true,
				used: make(chan struct{}, 1), closed: make(chan struct{}),
			}
			var got []byte
			var err error
			for p := make([]byte, 16<<10); err == nil; {
				x.next()
				var n int
				n, err = exchangeBody{x}.Read(p)
				got = append(got, p[:n]...)
			}
			if !bytes.Equal(got, c.want) {
				t.Errorf("%d bytes, %v; want %d", len(got), err, len(c.want))
			}
			if x.rest == 0 && name != "part of a message" && x.held.Load() > int64(len(plain)) {
				t.Errorf("%d bytes are held", x.held.Load())
			}
		})
	}
}
