package server

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// codec reads the messages of callers' methods into plain structs and leaves all others to the standard codec. Generated
// messages would cost a fifth of a call that does nothing else.
type codec struct {
	encoding.CodecV2 // the standard one

	most int // bytes of a message that is no report of a quota stream: grpc-go has one bound for all
}

func newCodec(most int) codec { return codec{encoding.GetCodecV2(encodingproto.Name), most} }

// rateLimitCall is the working memory of one call. It is reused.
type rateLimitCall struct {
	method   *method
	request  limiter.Request
	decision limiter.Decision

	// err is why the message could not be read. The codec does not return it: grpc-go would answer INTERNAL, although the
	// fault is the caller's.
	err   error
	size  int       // of the message, in bytes
	start time.Time // when the whole message had arrived

	reservation limiter.Reservation // request.Reservation points here

	batch    []*batched   // the requests of a batch, each decided on its own
	deciding atomic.Int32 // how many of them are not decided yet, and one more while they are begun
	decided  func(error)  // called when all are decided

	answeredByGRPC

	// On the built-in HTTP/2 server.
	lean   *transport.Call
	answer func(error) // finish; made once
	reply  []byte      // the encoded answer
}

// answeredByGRPC is what a call needs that grpc-go answers.
type answeredByGRPC struct {
	inFlight intake.InFlight
	exchange *exchange // on the built-in HTTP/2 server; else nil
	outgoing limiter.Batch
}

var callPool = sync.Pool{New: func() any { return new(rateLimitCall) }}

// maxKept is the largest message whose memory is reused, in bytes.
const maxKept = 4 << 10

func (c *rateLimitCall) release() {
	m := c.method
	c.releaseBatch()
	if c.size > m.most || cap(c.reply) > m.most {
		return
	}
	c.decision.Metadata = nil
	c.method, c.inFlight, c.exchange = nil, intake.InFlight{}, nil
	m.pool.Put(c)
}

// reply is an encoded answer in the form that grpc-go wants. It is usually one allocation, where a slice of buffers of
// bytes would be three.
type reply struct {
	slices [1]mem.Buffer
	data   mem.SliceBuffer
	small  [88]byte
}

func newReply(c *rateLimitCall) (_ *reply, err error) {
	r := new(reply)
	if c.method.batches { // too long to grow step by step
		if c.reply, err = c.method.append(c, c.reply[:0]); err != nil {
			return nil, err
		}
		r.data = slices.Clone(c.reply)
		r.slices[0] = &r.data
		return r, nil
	}
	if r.data, err = c.method.append(c, r.small[:0]); err != nil {
		return nil, err
	}
	r.slices[0] = &r.data
	return r, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if in, ok := v.(*quotaMessage); ok {
		data.Ref()
		in.data = data
		return nil
	}
	in, ok := v.(*rateLimitCall)
	if size := data.Len(); size > c.most {
		err := status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", size, c.most)
		if ok {
			in.err, in.size = err, size
			return nil
		}
		return err
	}
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	in.size = buf.Len()
	message := buf.ReadOnlyData()
	in.err = in.method.read(in, message, string(message))
	buf.Free()
	return nil
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch out := v.(type) {
	case *reply:
		return out.slices[:], nil
	case quotaAnswer:
		return mem.BufferSlice{mem.SliceBuffer(out)}, nil
	case proto.Message: // the standard codec takes 1 MiB for an answer above 32 KiB, as reflection's are
		b, err := proto.Marshal(out)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return c.CodecV2.Marshal(v)
}
