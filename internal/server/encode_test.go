package server

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// responseMessage is the expected result of appendResponse, built with the generated code.
func responseMessage(t testing.TB, d *limiter.Decision) *ratelimitv3.RateLimitResponse {
	t.Helper()
	m := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_Code(d.Code)}
	for _, s := range d.Statuses {
		to := &ratelimitv3.RateLimitResponse_DescriptorStatus{
			Code:           ratelimitv3.RateLimitResponse_Code(s.Code),
			LimitRemaining: uint32(min(s.Remaining, math.MaxUint32)),
		}
		if s.Code == limiter.OverLimit {
			to.LimitRemaining = 0
		}
		if s.Limited {
			to.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{
				Name:            limiter.SafeName(s.Limit.Name),
				RequestsPerUnit: uint32(min(s.Limit.Requests, math.MaxUint32)),
				Unit:            ratelimitv3.RateLimitResponse_RateLimit_Unit(s.Limit.Unit),
			}
			if s.Limit.Multiplier > 1 {
				to.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(s.Limit.Multiplier)
			}
			to.DurationUntilReset = durationpb.New(s.UntilReset())
		}
		m.Statuses = append(m.Statuses, to)
	}
	for _, h := range d.Headers {
		m.ResponseHeadersToAdd = append(m.ResponseHeadersToAdd, &corev3.HeaderValue{Key: h.Key, Value: h.Value})
	}
	for _, h := range d.Upstream {
		m.RequestHeadersToAdd = append(m.RequestHeadersToAdd, &corev3.HeaderValue{Key: h.Key, Value: h.Value})
	}
	if d.Metadata != nil {
		s, err := structpb.NewStruct(d.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		m.DynamicMetadata = s
	}
	return m
}

func checkEncode(t *testing.T, d *limiter.Decision) {
	t.Helper()
	var got ratelimitv3.RateLimitResponse
	b := appendResponse([]byte("before"), d)
	if string(b[:6]) != "before" {
		t.Fatalf("appendResponse does not append: % x", b)
	}
	if err := proto.Unmarshal(b[6:], &got); err != nil {
		t.Fatalf("%+v: % x: %v", d, b, err)
	}
	if len(got.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("%+v: unknown fields in % x", d, b)
	}
	if diff := cmp.Diff(responseMessage(t, d), &got, protocmp.Transform(), cmp.Comparer(sameNumber)); diff != "" {
		t.Fatalf("%+v (-want +got):\n%s", d, diff)
	}
	if again := appendResponse(nil, d); string(again) != string(b[6:]) {
		t.Fatalf("two encodings of one decision differ:\n% x\n% x", b[6:], again)
	}
}

func sameNumber(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

func smallDecision() *limiter.Decision {
	return &limiter.Decision{Code: limiter.OK, Statuses: []limiter.Status{{
		Code: limiter.OK, Limited: true, Remaining: 998, Reset: 42 * time.Second,
		Limit: limiter.CurrentLimit{Name: "per_address", Requests: 1000, Unit: descriptor.Minute},
	}}}
}

func TestEncodeAgreesWithGeneratedCode(t *testing.T) {
	for name, d := range map[string]*limiter.Decision{
		"zero":            {},
		"small":           smallDecision(),
		"unlimited":       {Code: limiter.OK, Statuses: []limiter.Status{{Code: limiter.OK, Remaining: math.MaxUint32}}},
		"nothing applied": {Code: limiter.OK, Statuses: []limiter.Status{{Code: limiter.OK}, {Code: limiter.OK}}},
		"not limited: what else is set is not written": {Code: limiter.OK, Statuses: []limiter.Status{
			{Code: limiter.OK, Reset: time.Second, Limit: limiter.CurrentLimit{Name: "x", Requests: 1, Unit: descriptor.Day}},
		}},
		"a limit of nothing": {Code: limiter.OverLimit, Statuses: []limiter.Status{{Code: limiter.OverLimit, Limited: true}}},
		"over the limit with hits left": {Code: limiter.OverLimit, Statuses: []limiter.Status{
			{Code: limiter.OK, Limited: true, Remaining: 2}, {Code: limiter.OverLimit, Limited: true, Remaining: 6},
		}},
		"durations": {Statuses: []limiter.Status{
			{Limited: true, Reset: 1}, {Limited: true, Reset: -1}, {Limited: true, Reset: -1500 * time.Millisecond},
			{Limited: true, Reset: math.MaxInt64}, {Limited: true, Reset: math.MinInt64},
		}},
		"headers":           {Code: limiter.OverLimit, Headers: []limiter.Header{{Key: "RateLimit-Limit", Value: "10"}, {}, {Key: "k"}, {Value: "v"}}},
		"request headers":   {Code: limiter.OK, Headers: []limiter.Header{{Key: "a", Value: "1"}}, Upstream: []limiter.Header{{Key: "x-envoy-fault-delay-request", Value: "1000"}, {}, {Key: "k"}}},
		"long name":         {Statuses: []limiter.Status{{Limited: true, Limit: limiter.CurrentLimit{Name: string(make([]byte, 300)), Requests: math.MaxUint32, Unit: descriptor.Week}}}},
		"several units":     {Statuses: []limiter.Status{{Limited: true, Limit: limiter.CurrentLimit{Name: "n", Requests: 7, Unit: descriptor.Minute, Multiplier: 15}}}},
		"many units":        {Statuses: []limiter.Status{{Limited: true, Limit: limiter.CurrentLimit{Requests: 7, Unit: descriptor.Second, Multiplier: math.MaxUint32}}}},
		"more than 32 bits": {Statuses: []limiter.Status{{Limited: true, Remaining: 5_000_000_000, Limit: limiter.CurrentLimit{Requests: descriptor.MaxRequests, Unit: descriptor.Day}}}},
		"empty metadata":    {Metadata: map[string]any{}},
		"metadata": {Metadata: map[string]any{
			"": "", "text": "한글", "yes": true, "no": false, "nothing": nil, "int": -3, "int64": int64(1 << 40), "uint64": uint64(math.MaxUint64),
			"float": 0.1, "inf": math.Inf(-1), "list": []any{}, "lists": []any{1, "two", nil, []any{true}, map[string]any{"a": 1.5}},
			"map": map[string]any{"empty": map[string]any{}, "deep": map[string]any{"er": map[string]any{"long": string(make([]byte, 200))}}},
		}},
	} {
		t.Run(name, func(t *testing.T) { checkEncode(t, d) })
	}
}

// Envoy writes a limit's name into a header unchanged. It cannot start another header there, or end the quoted text.
func TestEncodeNames(t *testing.T) {
	for name, want := range map[string]string{
		"per day": "per day", "분당 100%": "분당 100%", "": "",
		"x\r\nset-cookie: s=1\r\nx-b: ": "x%0D%0Aset-cookie: s=1%0D%0Ax-b: ",
		`a"b\c` + "\x00\t\x7f":          "a%22b%5Cc%00%09%7F",
	} {
		d := &limiter.Decision{Statuses: []limiter.Status{{Limited: true, Limit: limiter.CurrentLimit{Name: name}}}}
		var got ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(appendResponse(nil, d), &got); err != nil {
			t.Fatal(err)
		}
		if got := got.GetStatuses()[0].GetCurrentLimit().GetName(); got != want {
			t.Errorf("%q is sent as %q, want %q", name, got, want)
		}
	}
}

// Values that structpb would reject are encoded as closely as possible, so that the answer can be decoded.
func TestEncodeMetadataThatHasNoWireForm(t *testing.T) {
	d := &limiter.Decision{Code: limiter.OK, Metadata: map[string]any{"a\xff": "b\xff", "t": time.Second}}
	var got ratelimitv3.RateLimitResponse
	if err := proto.Unmarshal(appendResponse(nil, d), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a\uFFFD": "b\uFFFD", "t": "1s"}
	if diff := cmp.Diff(want, got.GetDynamicMetadata().AsMap()); diff != "" {
		t.Error(diff)
	}
}

func FuzzAppendResponse(f *testing.F) {
	f.Add(uint8(1), uint8(1), true, "name", uint64(10), uint8(2), uint64(9), int64(5e9), "k", "v", []byte(`{"a":[1,"b",null,{"c":true}]}`))
	f.Add(uint8(2), uint8(2), false, "", uint64(0), uint8(0), uint64(math.MaxUint32), int64(-1), "", "", []byte(``))
	f.Fuzz(func(t *testing.T, code, status uint8, limited bool, name string, requests uint64, unit uint8, remaining uint64, reset int64, key, value string, metadata []byte) {
		d := &limiter.Decision{
			Code: limiter.Code(code),
			Statuses: []limiter.Status{{}, {
				Code: limiter.Code(status), Limited: limited, Remaining: remaining, Reset: time.Duration(reset),
				Limit: limiter.CurrentLimit{Name: validText(name), Requests: requests, Unit: descriptor.Unit(unit)},
			}},
			Headers: []limiter.Header{{Key: validText(key), Value: validText(value)}},
		}
		if json.Unmarshal(metadata, &d.Metadata) != nil {
			d.Metadata = nil
		}
		checkEncode(t, d)
	})
}

func BenchmarkAppendResponse(b *testing.B) {
	d := smallDecision()
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		call := &rateLimitCall{method: new(method), decision: *d}
		for b.Loop() {
			if err := call.encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := proto.Marshal(responseMessage(b, d)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
