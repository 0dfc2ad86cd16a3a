package serviceclient

import (
	"context"
	"math"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Request is a request for a decision.
type Request struct {
	Domain      string
	Descriptors [][]descriptor.Entry
	Hits        int64                 // of each descriptor; 0 peeks, a negative number refunds
	Limit       *limiter.RequestLimit // replaces the limit of each descriptor's rule; nil: does not
}

func (r *Request) message() *ratelimitv3.RateLimitRequest {
	m := &ratelimitv3.RateLimitRequest{Domain: r.Domain}
	single := r.Hits > 0 && r.Hits <= math.MaxUint32 // the field that every server knows
	if single {
		m.HitsAddend = uint32(r.Hits)
	}
	for _, entries := range r.Descriptors {
		d := &descriptorv3.RateLimitDescriptor{}
		for _, e := range entries {
			d.Entries = append(d.Entries, &descriptorv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		if !single {
			d.HitsAddend = wrapperspb.UInt64(uint64(max(r.Hits, -r.Hits)))
			d.IsNegativeHits = r.Hits < 0
		}
		if o := r.Limit; o != nil {
			d.Limit = &descriptorv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: o.Requests, Unit: typev3.RateLimitUnit(o.Unit)}
			if o.Multiplier > 1 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(o.Multiplier)
			}
		}
		m.Descriptors = append(m.Descriptors, d)
	}
	return m
}

// ShouldRateLimit sends a message as it is.
func (c *Client) ShouldRateLimit(ctx context.Context, m *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	answer, err := ratelimitv3.NewRateLimitServiceClient(c.conn).ShouldRateLimit(ctx, m)
	if err != nil {
		return nil, c.failure(err)
	}
	return answer, nil
}

// Answer is a decision.
type Answer struct {
	Code     string         `json:"code"` // OK, OVER_LIMIT or UNKNOWN
	Statuses []Status       `json:"statuses"`
	Headers  []Header       `json:"headers"`                   // for the client's response
	Upstream []Header       `json:"request_headers,omitempty"` // for the request that goes upstream
	Body     string         `json:"body,omitempty"`
	Metadata map[string]any `json:"dynamic_metadata,omitempty"`
	Millis   float64        `json:"took_ms"`
}

// Status is the verdict on one descriptor.
type Status struct {
	Entries   []Entry  `json:"entries"`
	Code      string   `json:"code"`
	Limit     *Limit   `json:"limit,omitempty"` // absent if none applied
	Remaining uint32   `json:"remaining"`
	Reset     *float64 `json:"reset_seconds,omitempty"`
}

// Limit is the limit that a status is about.
type Limit struct {
	Name     string `json:"name,omitempty"`
	Requests uint32 `json:"requests_per_unit"`
	Unit     string `json:"unit"` // "unknown" if the protocol cannot express the window, or there is none: requests in flight

	UnitMultiplier uint32 `json:"unit_multiplier,omitempty"` // 0 means 1
}

// Entry is one key/value pair.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Header is one header.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// OverLimit is the code of a request that is denied.
const OverLimit = "OVER_LIMIT"

// Decide sends one request.
func (c *Client) Decide(ctx context.Context, r *Request) (*Answer, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	began := time.Now()
	got, err := ratelimitv3.NewRateLimitServiceClient(c.conn).ShouldRateLimit(ctx, r.message())
	took := time.Since(began)
	if err != nil {
		return nil, c.failure(err)
	}
	a := &Answer{
		Code:     got.GetOverallCode().String(),
		Statuses: []Status{},
		Headers:  headersOf(got.GetResponseHeadersToAdd()),
		Body:     string(got.GetRawBody()),
		Millis:   float64(took.Microseconds()) / 1000,
	}
	if up := got.GetRequestHeadersToAdd(); len(up) > 0 {
		a.Upstream = headersOf(up)
	}
	if m := got.GetDynamicMetadata(); m != nil {
		a.Metadata = m.AsMap()
	}
	for i, s := range got.GetStatuses() {
		one := Status{Code: s.GetCode().String(), Remaining: s.GetLimitRemaining(), Entries: []Entry{}}
		if i < len(r.Descriptors) {
			one.Entries = entriesOf(r.Descriptors[i])
		}
		if l := s.GetCurrentLimit(); l != nil {
			one.Limit = &Limit{Name: l.GetName(), Requests: l.GetRequestsPerUnit(), Unit: unitName(int32(l.GetUnit())), UnitMultiplier: l.GetUnitMultiplier().GetValue()}
		}
		if d := s.GetDurationUntilReset(); d != nil {
			seconds := d.AsDuration().Seconds()
			one.Reset = &seconds
		}
		a.Statuses = append(a.Statuses, one)
	}
	return a, nil
}

// unitName is the name of a unit from the wire. The protocol's own code has no names for newer units.
func unitName(n int32) string {
	if n < 0 || n > math.MaxUint8 || !descriptor.Unit(n).OnWire() {
		return descriptor.UnitUnknown.String()
	}
	return descriptor.Unit(n).String()
}

func headersOf(list []*commonv3.HeaderValue) []Header {
	all := []Header{}
	for _, h := range list {
		value := h.GetValue()
		if value == "" {
			value = string(h.GetRawValue())
		}
		all = append(all, Header{h.GetKey(), value})
	}
	return all
}

func entriesOf(entries []descriptor.Entry) []Entry {
	all := []Entry{}
	for _, e := range entries {
		all = append(all, Entry{e.Key, e.Value})
	}
	return all
}
