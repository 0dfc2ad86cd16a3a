package server

import (
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// codec reads ShouldRateLimit's messages into plain structs and leaves all others to the standard codec. The generated
// messages cost a fifth of a call in which nothing else is done.
type codec struct {
	encoding.CodecV2 // the standard one

	limits bounds
}

func newCodec(limits bounds) codec {
	return codec{CodecV2: encoding.GetCodecV2(encodingproto.Name), limits: limits}
}

// call is the working memory of one ShouldRateLimit. It is reused.
type call struct {
	request  limiter.Request
	decision limiter.Decision

	// err is why the message could not be read. The codec does not return it: grpc-go would make it INTERNAL, as if the
	// fault were ours.
	err   error
	size  int       // of the message, in bytes
	start time.Time // when the message had arrived
}

var calls = sync.Pool{New: func() any { return new(call) }}

// maxKept bounds the message whose memory is kept for another one, in bytes.
const maxKept = 4 << 10

func (c *call) release() {
	if c.size > maxKept {
		return
	}
	c.decision.Metadata = nil
	calls.Put(c)
}

// reply is an encoded answer in the form in which the transport wants it: usually one piece of memory, where a slice of
// buffers of bytes would be three.
type reply struct {
	slices [1]mem.Buffer
	data   mem.SliceBuffer
	small  [88]byte
}

func newReply(d *limiter.Decision) *reply {
	r := new(reply)
	r.data = appendResponse(r.small[:0], d)
	r.slices[0] = &r.data
	return r
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*call)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	in.size = buf.Len()
	in.err = decodeRequest(buf.ReadOnlyData(), &in.request, c.limits)
	buf.Free()
	return nil
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if out, ok := v.(*reply); ok {
		return out.slices[:], nil
	}
	return c.CodecV2.Marshal(v)
}
