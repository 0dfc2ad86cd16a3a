package xds

import (
	"errors"
	"fmt"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Fields of RateLimitDescriptor that the newest published Go code does not have yet. Once it has them, they are no
// longer among the unknown fields; a test fails then.
const (
	quotaModeField = 7 // bool
	metadataField  = 8 // google.protobuf.Struct
)

var errFields = errors.New("cannot be decoded: unknown fields are not valid protobuf")

// newer reads the fields that the Go code does not have. As usual in protobuf, the last value wins and messages are
// merged.
func newer(d *ratelimitv3.RateLimitDescriptor) (quota bool, metadata *structpb.Struct, err error) {
	for b := d.ProtoReflect().GetUnknown(); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false, nil, errFields
		}
		length := protowire.ConsumeFieldValue(number, kind, b[n:])
		if length < 0 {
			return false, nil, errFields
		}
		value := b[n : n+length]
		b = b[n+length:]
		switch {
		case number == quotaModeField && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			quota = protowire.DecodeBool(v)
		case number == metadataField && kind == protowire.BytesType:
			text, _ := protowire.ConsumeBytes(value)
			if metadata == nil {
				metadata = &structpb.Struct{}
			}
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(text, metadata); err != nil {
				return false, nil, fmt.Errorf("`metadata` cannot be decoded: %w", err)
			}
		}
	}
	return quota, metadata, nil
}
