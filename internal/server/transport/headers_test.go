package transport

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// FuzzHeaders decodes the header blocks of a connection with this package's reader and with package hpack. Both must
// find the same fields and the same calls, or reject the same block. Each part of the input is a block, after its
// length in two bytes. If the first bit of the length is set, the block is sent twice.
func FuzzHeaders(f *testing.F) {
	join := func(blocks ...[]byte) (in []byte) {
		for _, b := range blocks {
			in = append(append(in, byte(len(b)>>8), byte(len(b))), b...)
		}
		return in
	}
	for _, tracing := range envoytest.Tracings {
		first, repeated := envoytest.Calls(tracing, echoPath, "test")
		f.Add(join(slices.Concat(first, repeated)...), uint16(0))
	}
	var own bytes.Buffer
	enc := hpack.NewEncoder(&own)
	own2 := func(fields ...hpack.HeaderField) []byte {
		own.Reset()
		for _, field := range fields {
			_ = enc.WriteField(field)
		}
		return bytes.Clone(own.Bytes())
	}
	long := strings.Repeat("long", 900)
	f.Add(join(own2(callFields("a-bin", "YQ", "x", long)...), own2(callFields("x", long+"er", "y", "z")...), []byte{0xbe, 0xbf, 0xc0}), uint16(0))
	f.Add(join(http2test.Unindexed(callFields("x", "\x00\x7f \xff", "Upper", "\t", "te", "no")...)), uint16(300))
	f.Add(join([]byte{0x20, 0x3f, 0xe1, 0x1f, 0x82}, []byte{0x40, 0, 0, 0x20}, []byte{0x40, 0x81, 0x07, 0x82, 0xff, 0xff}), uint16(0))
	f.Add(join([]byte{0x3f, 0x45, 0x40, 1, 'n', 1, 'v'}, bytes.Repeat([]byte{0x7e, 1, 'v'}, 40), []byte{0x7e, 0}), uint16(0))
	f.Add(join([]byte{0x40, 0, 0}, []byte{0xff, 0x80, 0x80, 0x80, 0x00}, []byte{0x0f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}), uint16(20))
	many := append(slices.Repeat([]hpack.HeaderField{{Name: "a", Value: "b"}}, 1200), callFields()...)
	f.Add(join(own2(many[:1199]...), own2(append(many[1200:], many...)...)), uint16(0))
	f.Fuzz(func(t *testing.T, in []byte, bound uint16) {
		maxSize := 64 + uint32(bound) // the static table's strings are shorter
		if bound == 0 {
			maxSize = 256 << 10
		}
		vocab := newVocabulary(&Options{Path: echoPath, More: []string{otherPath}, Wanted: namesIn(in, maxSize)})
		var r headerReader
		r.init(vocab, maxSize)
		want := newReference(maxSize)
		again := false
		for len(in) >= 2 {
			n := min(int(in[0]&0x7f)<<8|int(in[1]), len(in)-2)
			block := in[2 : 2+n]
			if again = !again && in[0]&0x80 != 0; !again {
				in = in[2+n:]
			}
			failed, wouldFail := r.read(block), want.read(block)
			if (failed == nil) != (wouldFail == nil) {
				t.Fatalf("block %x: error %v, package hpack %v", block, failed, wouldFail)
			}
			if failed != nil {
				return // the connection ends
			}
			if r.tooLong != want.tooLong {
				t.Fatalf("block %x: too long %t, want %t", block, r.tooLong, want.tooLong)
			}
			if !r.tooLong && r.size != int(want.size) {
				t.Fatalf("block %x: size %d, want %d", block, r.size, want.size)
			}
			h, ok := r.request()
			if ok != want.request() {
				t.Fatalf("block %x %q: well-formed %t, want %t", block, want.fields, ok, want.request())
			}
			if ok {
				if got, want := *h, want.head(vocab); got != want {
					t.Fatalf("block %x says %+v, want %+v", block, got, want)
				}
				method, path := string(r.value(methodField)), string(r.value(pathField))
				if method != valueOf(want.fields, ":method") || path != valueOf(want.fields, ":path") {
					t.Fatalf("block %x: %q %q, want %q", block, method, path, want.fields)
				}
				for i, name := range vocab.wanted {
					value := ""
					if i < len(r.values) {
						value = r.values[i]
					}
					if first := valueOf(slices.DeleteFunc(slices.Clone(want.fields), func(f hpack.HeaderField) bool { return f.Value == "" }), name); value != first {
						t.Fatalf("block %x: %s is %q, want %q", block, name, value, first)
					}
				}
			}
			r.letGo()
			if cap(r.text) > maxKeptText || cap(r.table.text) > 4*hpackTable || cap(r.table.entries) > 4*hpackTable/entryOverhead {
				t.Fatalf("the reader keeps %d and %d bytes and %d entries", cap(r.text), cap(r.table.text), cap(r.table.entries))
			}
		}
	})
}

// namesIn returns the names of regular fields in blocks, at most as many as a reader may want.
func namesIn(in []byte, maxSize uint32) (names []string) {
	r := newReference(maxSize)
	for len(in) >= 2 {
		n := min(int(in[0]&0x7f)<<8|int(in[1]), len(in)-2)
		if r.read(in[2:2+n]) != nil {
			break
		}
		in = in[2+n:]
		for _, f := range r.fields {
			if !strings.HasPrefix(f.Name, ":") && !slices.Contains(names, f.Name) && len(names) < math.MaxUint8 {
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// valueOf returns the first value of a header field, or "".
func valueOf(fields []hpack.HeaderField, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// reference decodes header blocks with package hpack, and checks them by RFC 9113 field by field.
type reference struct {
	decoder *hpack.Decoder
	maxSize uint32
	fields  []hpack.HeaderField
	size    uint32
	tooLong bool
}

func newReference(maxSize uint32) *reference {
	r := &reference{maxSize: maxSize}
	r.decoder = hpack.NewDecoder(hpackTable, func(f hpack.HeaderField) {
		if r.size += f.Size(); r.size > maxSize {
			r.tooLong = true
			r.decoder.SetEmitEnabled(false)
			return
		}
		f.Sensitive = false
		r.fields = append(r.fields, f)
	})
	r.decoder.SetMaxStringLength(int(maxSize))
	return r
}

func (r *reference) read(block []byte) error {
	r.fields, r.size, r.tooLong = nil, 0, false
	r.decoder.SetEmitEnabled(true)
	if _, err := r.decoder.Write(block); err != nil {
		return err
	}
	return r.decoder.Close()
}

// request reports whether the fields are those of a request.
func (r *reference) request() bool {
	given := make(map[string]int)
	regular := false
	for _, f := range r.fields {
		given[f.Name]++
		switch {
		case !httpguts.ValidHeaderFieldValue(f.Value):
			return false
		case strings.HasPrefix(f.Name, ":"):
			if regular || given[f.Name] > 1 || !slices.Contains([]string{":method", ":scheme", ":path", ":authority"}, f.Name) {
				return false
			}
			continue
		case !httpguts.ValidHeaderFieldName(f.Name), strings.ToLower(f.Name) != f.Name:
			return false
		}
		regular = true
		switch f.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return false
		case "te":
			if f.Value != "trailers" {
				return false
			}
		case "content-length":
			if given[f.Name] > 1 || f.Value == "" || len(strings.Trim(f.Value, "0123456789")) > 0 || tooLarge62(f.Value) {
				return false
			}
		}
	}
	return !r.tooLong && given[":method"] == 1 && given[":scheme"] == 1 && valueOf(r.fields, ":path") != ""
}

// head returns the header of the request with these fields.
func (r *reference) head(v *vocabulary) head {
	h := head{declared: -1}
	hosts, invalid := 0, false
	for _, f := range r.fields {
		switch f.Name {
		case "content-length":
			h.declared, _ = strconv.ParseInt(f.Value, 10, 64)
		case "host":
			hosts++
		case "grpc-timeout":
			h.timeout, h.timed = parseTimeout([]byte(f.Value)), true
			invalid = invalid || h.timeout < 0
		case "grpc-encoding":
			h.encoding = f.Value
		default:
			invalid = invalid || strings.HasSuffix(f.Name, "-bin") && !isBinary(f.Value)
		}
	}
	if slices.ContainsFunc(r.fields, func(f hpack.HeaderField) bool { return f.Name == ":authority" }) {
		hosts = max(hosts, 1)
	}
	path := valueOf(r.fields, ":path")
	known := slices.IndexFunc(v.methods, func(m method) bool { return m.path == path })
	if known >= 0 && valueOf(r.fields, ":method") == "POST" && hosts == 1 && isGRPC(valueOf(r.fields, "content-type")) && !invalid {
		h.known = &v.methods[known]
	}
	return h
}

// tooLarge62 reports whether a decimal number needs more than 62 bits.
func tooLarge62(digits string) bool {
	digits = strings.TrimLeft(digits, "0")
	const most = "4611686018427387903"
	return len(digits) > len(most) || len(digits) == len(most) && digits > most
}

// BenchmarkHeaders decodes the header blocks of Envoy's calls.
func BenchmarkHeaders(b *testing.B) {
	for _, tracing := range envoytest.Tracings {
		b.Run(tracing.String(), func(b *testing.B) {
			first, repeated := envoytest.Calls(tracing, echoPath, "test")
			var r headerReader
			r.init(newVocabulary(&Options{Path: echoPath}), 256<<10)
			read := func(block []byte) {
				if err := r.read(block); err != nil {
					b.Fatal(err)
				}
				if h, ok := r.request(); !ok || h.known == nil {
					b.Fatal("the block is no call")
				}
				r.letGo()
			}
			for _, block := range first {
				read(block)
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				read(repeated[n%len(repeated)])
			}
		})
	}
}

// Eight bytes that are checked together have the same result as single ones, next to any other bytes.
func TestValidValue(t *testing.T) {
	for _, around := range []byte{' ', 'a', '~', 0x80, 0xff} {
		for at := range 10 {
			for b := range 256 {
				value := bytes.Repeat([]byte{around}, 10)
				value[at] = byte(b)
				if got, want := validValue(value), httpguts.ValidHeaderFieldValue(string(value)); got != want {
					t.Fatalf("%q: valid %t, want %t", value, got, want)
				}
			}
		}
	}
}
