package serviceclient

import (
	"context"
	"math"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Request is a request for a decision.
type Request struct {
	Domain      string
	Descriptors [][]descriptor.Entry
	Hits        int64                 // hits of each descriptor; 0 peeks, a negative number refunds
	Limit       *limiter.RequestLimit // replaces the limit of each descriptor's rule; nil keeps it
}

// Message returns the request as a message.
func (r *Request) Message() *ratelimitv3.RateLimitRequest {
	m := &ratelimitv3.RateLimitRequest{Domain: r.Domain}
	single := r.Hits > 0 && r.Hits <= math.MaxUint32 // the field that every server supports
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
			d.Limit = &descriptorv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: o.Requests,
				Unit: typev3.RateLimitUnit(o.Unit)}
			if o.Multiplier > 1 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(o.Multiplier)
			}
		}
		m.Descriptors = append(m.Descriptors, d)
	}
	return m
}

// OverLimit is the code of a request that is denied.
const OverLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT

// ShouldRateLimit asks for a decision.
func (c *Client) ShouldRateLimit(ctx context.Context,
	m *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return ask(ctx, c, ratelimitv3.NewRateLimitServiceClient(c.conn).ShouldRateLimit, m)
}

// Reserve asks Kuadrant's service to reserve hits. The request's first fields are a ReserveRequest's, the others are
// unknown to it; the answer has only a code. A server without that method gives no answer and no error.
func (c *Client) Reserve(ctx context.Context, m *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return ask(ctx, c, func(ctx context.Context, m *ratelimitv3.RateLimitRequest,
		opts ...grpc.CallOption) (*ratelimitv3.RateLimitResponse, error) {
		first := new(wrapperspb.UInt64Value) // a ReserveResponse's first field is its code
		err := c.conn.Invoke(ctx, "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve", m, first, opts...)
		if status.Code(err) == codes.Unimplemented {
			return nil, nil //nolint:nilnil // stated
		}
		return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_Code(first.GetValue())}, err //nolint:gosec // a code
	}, m)
}

// unitName is the name of a unit from the wire. The protocol's own code has no names for newer units.
func unitName(n int32) string {
	if n < 0 || n > math.MaxUint8 || !descriptor.Unit(n).OnWire() {
		return descriptor.UnitUnknown.String()
	}
	return descriptor.Unit(n).String()
}
