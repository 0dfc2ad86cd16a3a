package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

var unbounded = Requests{MaxDescriptors: math.MaxInt, MaxEntries: math.MaxInt, MaxTextBytes: math.MaxInt}

// plainRequest is the expected result of decodeRequest, built with the generated code.
func plainRequest(m *ratelimitv3.RateLimitRequest) limiter.Request {
	req := limiter.Request{Domain: m.GetDomain(), Hits: m.GetHitsAddend()}
	for _, from := range m.GetDescriptors() {
		var d limiter.Descriptor
		for _, e := range from.GetEntries() {
			d.Entries = append(d.Entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if from.GetLimit() != nil {
			d.HasLimit = true
			d.Limit = limiter.RequestLimit{
				Requests: from.GetLimit().GetRequestsPerUnit(), Unit: int32(from.GetLimit().GetUnit()), Multiplier: from.GetLimit().GetUnitMultiplier().GetValue(),
			}
		}
		if from.GetHitsAddend() != nil {
			d.HasHits, d.Hits = true, from.GetHitsAddend().GetValue()
		}
		d.Refund = from.GetIsNegativeHits()
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func fullRequest() *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{
		Domain:     "edge",
		HitsAddend: 7,
		Descriptors: []*commonv3.RateLimitDescriptor{
			{
				Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "10.0.0.1"}, {Key: "path", Value: ""}},
				Limit: &commonv3.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: 42, Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(3),
				},
				HitsAddend:     wrapperspb.UInt64(math.MaxUint64),
				IsNegativeHits: true,
			},
			{},
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "키", Value: "값"}}, HitsAddend: wrapperspb.UInt64(0)},
		},
	}
}

func smallRequest() *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{
		Domain: "edge-proxy",
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "remote_address", Value: "203.0.113.77"}, {Key: "path", Value: "/api/v1/users"}},
		}},
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// field encodes bytes by hand, for messages that Marshal would never produce.
func field(num protowire.Number, v any) []byte {
	switch v := v.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), uint64(v))
	case uint64:
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
	case string:
		return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), v)
	case []byte:
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), v)
	case uint32:
		return protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), v)
	default:
		panic(fmt.Sprintf("%T", v))
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// wireCases are messages that are easily decoded wrongly.
func wireCases(t testing.TB) map[string][]byte {
	full := encode(t, fullRequest())
	return map[string][]byte{
		"empty":                      {},
		"full":                       full,
		"small":                      encode(t, smallRequest()),
		"last domain wins":           join(field(1, "a"), field(1, "b")),
		"empty domain after another": join(field(1, "a"), field(1, "")),
		"fields backwards":           join(field(3, 5), field(2, field(1, join(field(2, "v"), field(1, "k")))), field(1, "d")),
		"hits wider than 32 bits":    field(3, uint64(1<<32|9)),
		"limits are merged":          field(2, join(field(2, field(1, 5)), field(2, field(2, 2)), field(2, []byte{}))),
		"limit's unit is negative":   field(2, field(2, field(2, uint64(math.MaxUint64)))),
		"multiplier":                 field(2, field(2, field(3, field(1, 5)))),
		"malformed multiplier":       field(2, field(2, field(3, []byte{0x08}))),
		"wrapped hits are merged":    field(2, join(field(3, field(1, 5)), field(3, []byte{}))),
		"wrapped hits, last wins":    field(2, join(field(3, field(1, 5)), field(3, field(1, 0)))),
		"refund taken back":          field(2, join(field(4, 1), field(4, 0))),
		"refund by any number":       field(2, field(4, uint64(1<<40))),
		"unknown fields":             join(field(9, "x"), field(100, 5), field(77, uint32(5)), field(2, join(field(9, 1), field(1, join(field(1, "k"), field(9, "?")))))),
		"unknown group":              join(protowire.AppendTag(nil, 9, protowire.StartGroupType), field(1, "a"), protowire.AppendTag(nil, 9, protowire.EndGroupType), field(1, "d")),
		"group without an end":       join(protowire.AppendTag(nil, 9, protowire.StartGroupType), field(1, "a")),
		"end without a group":        protowire.AppendTag(nil, 9, protowire.EndGroupType),
		"known field, other type":    join(field(1, 5), field(3, "x"), field(2, 5), field(2, join(field(1, 5), field(2, 5), field(3, 5), field(4, "x")))),
		"hits that are packed":       field(3, []byte{5}),
		"field number 0":             {0x00, 0x01},
		"field number too large":     {0xf8, 0xff, 0xff, 0xff, 0x7f, 0x01},
		"reserved wire type":         {0x0f},
		"domain is not UTF-8":        field(1, "\xff"),
		"key is not UTF-8":           field(2, field(1, field(1, "a\xc3"))),
		"value is not UTF-8":         field(2, field(1, field(2, "\xed\xa0\x80"))),
		"truncated":                  full[:len(full)-3],
		"length beyond the end":      {0x0a, 0x05, 'a'},
		"nested beyond its parent":   {0x12, 0x02, 0x0a, 0x05, 'a', 'b', 'c', 'd', 'e'},
		"huge length":                {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"varint of 11 bytes":         {0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01},
		"overlong tag":               {0x8a, 0x00, 0x01, 'd'},
	}
}

func checkDecode(t *testing.T, data []byte, into *limiter.Request) {
	t.Helper()
	var m ratelimitv3.RateLimitRequest
	wantErr := proto.Unmarshal(data, &m)
	err := decodeRequest(data, into, unbounded)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("% x: err %v, the generated code says %v", data, err, wantErr)
	}
	if err != nil {
		if !errors.As(err, new(*limiter.InvalidError)) {
			t.Fatalf("% x: %v is no InvalidError", data, err)
		}
		return
	}
	if diff := cmp.Diff(plainRequest(&m), *into, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("% x (-generated +got):\n%s", data, diff)
	}
}

func TestDecodeAgreesWithGeneratedCode(t *testing.T) {
	var reused limiter.Request
	accepted := 0
	for name, data := range wireCases(t) {
		t.Run(name, func(t *testing.T) {
			checkDecode(t, data, new(limiter.Request))
			checkDecode(t, data, &reused) // earlier content leaves no trace
			if decodeRequest(data, new(limiter.Request), unbounded) == nil {
				accepted++
			}
		})
	}
	if accepted < 15 {
		t.Errorf("only %d cases were accepted: the test shows little", accepted)
	}
}

// Only the copy is kept: the transport reuses its buffer.
func TestDecodeKeepsNothingOfItsInput(t *testing.T) {
	data := encode(t, fullRequest())
	var req limiter.Request
	if err := decodeRequest(data, &req, unbounded); err != nil {
		t.Fatal(err)
	}
	for i := range data {
		data[i] = 'X'
	}
	if diff := cmp.Diff(plainRequest(fullRequest()), req, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeBounds(t *testing.T) {
	one := field(2, field(1, field(1, "k")))
	three := field(2, bytes.Repeat(field(1, field(1, "k")), 3))
	for _, tt := range []struct {
		name   string
		data   []byte
		bounds Requests
		want   string // text in the error; empty if there is no error
	}{
		{"as many descriptors as allowed", bytes.Repeat(one, 4), Requests{0, 4, 2, 9}, ""},
		{"one more descriptor", bytes.Repeat(one, 5), Requests{0, 4, 2, 9}, "descriptors: more than 4"},
		{"as many entries as allowed", three, Requests{0, 4, 3, 9}, ""},
		{"one more entry", join(one, three), Requests{0, 4, 2, 9}, "descriptors[1].entries: more than 2"},
		{"texts as long as allowed", join(field(1, "123456789"), field(2, field(1, join(field(1, "123456789"), field(2, "123456789"))))), Requests{0, 4, 2, 9}, ""},
		{"a longer domain", field(1, "1234567890"), Requests{0, 4, 2, 9}, "domain: more than 9 bytes"},
		{"a longer key", join(one, field(2, field(1, field(1, "1234567890")))), Requests{0, 4, 2, 9}, "descriptors[1].entries: a key or a value of more than 9 bytes"},
		{"a longer value", field(2, field(1, field(2, "1234567890"))), Requests{0, 4, 2, 9}, "descriptors[0].entries: a key or a value of more than 9 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := decodeRequest(tt.data, new(limiter.Request), tt.bounds)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, new(*limiter.InvalidError)) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("err %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDecodeAllocatesOneString(t *testing.T) {
	data := encode(t, smallRequest())
	var req limiter.Request
	if n := testing.AllocsPerRun(100, func() {
		if err := decodeRequest(data, &req, unbounded); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, data := range wireCases(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		reused := plainRequest(fullRequest())
		checkDecode(t, data, &reused)
	})
}

func BenchmarkDecodeRequest(b *testing.B) {
	data := encode(b, smallRequest())
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		var req limiter.Request
		for b.Loop() {
			if err := decodeRequest(data, &req, unbounded); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m ratelimitv3.RateLimitRequest
			if err := proto.Unmarshal(data, &m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// The memory of a decoded request is counted while it is decided: two bytes can become an entry.
func TestDecodedRequestsAreHeld(t *testing.T) {
	registry := prometheus.NewRegistry()
	deciding, decide := make(chan struct{}), make(chan struct{})
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{
		Decider: decider(func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
			deciding <- struct{}{}
			<-decide
			return passAll(ctx, now, req, d)
		}),
	})
	held := func() float64 { return gathered(t, registry)[`ratelimitd_client_bytes{class=grpc}`] }
	short, long := &ratelimitv3.RateLimitRequest{Domain: "d"}, &ratelimitv3.RateLimitRequest{Domain: "d"}
	for i := range 200 {
		d := &commonv3.RateLimitDescriptor{Entries: make([]*commonv3.RateLimitDescriptor_Entry, 20)}
		for j := range d.Entries {
			d.Entries[j] = new(commonv3.RateLimitDescriptor_Entry)
		}
		if long.Descriptors = append(long.Descriptors, d); i == 0 {
			short.Descriptors = append(short.Descriptors, d)
		}
	}
	for _, c := range []struct {
		request *ratelimitv3.RateLimitRequest
		least   float64
	}{{short, 0}, {long, 200 * 20 * entrySize}} {
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := ratelimitv3.NewRateLimitServiceClient(r.conn).ShouldRateLimit(t.Context(), c.request); err != nil {
				t.Error(err)
			}
		})
		<-deciding
		if n := held(); n < c.least || c.least == 0 && n != 0 {
			t.Errorf("while %d descriptors are decided, %g bytes are held, want %g", len(c.request.Descriptors), n, c.least)
		}
		decide <- struct{}{}
		calls.Wait()
		soon(t, "nothing is held", func() bool { return held() == 0 })
	}
}
