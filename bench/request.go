package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

const (
	domain         = "bench"
	digits         = "00000000" // stands for the number in a value
	maxKeys        = 100_000_000
	maxDescriptors = 100
)

func descriptorKey(i int) string { return fmt.Sprintf("user%d", i) }

// payload is an encoded request, a gRPC message with its frame. Only the numbers in its values change between calls,
// and they have a fixed width. So encoding a request means copying it and writing the digits.
type payload struct {
	message []byte
	numbers []int // offsets of each descriptor's digits
	keys    int
	headers [][2]string // sent with every request besides those that gRPC needs
}

// newPayload encodes a request with a number of descriptors, each with one of a number of values.
func newPayload(keys, descriptors int) *payload {
	req := &ratelimitv3.RateLimitRequest{Domain: domain}
	for i := range descriptors {
		req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: descriptorKey(i), Value: "customer-" + digits}},
		})
	}
	body, err := proto.Marshal(req)
	if err != nil {
		panic("a request of our own cannot be encoded: " + err.Error())
	}
	p := &payload{message: make([]byte, 5, 5+len(body)), keys: keys}
	binary.BigEndian.PutUint32(p.message[1:], uint32(len(body)))
	p.message = append(p.message, body...)
	for at := 0; ; {
		next := bytes.Index(p.message[at:], []byte(digits))
		if next < 0 {
			return p
		}
		p.numbers = append(p.numbers, at+next)
		at += next + len(digits)
	}
}

// draw writes new numbers into a copy of the message.
func (p *payload) draw(message []byte, random *rand.Rand) {
	for _, at := range p.numbers {
		n := random.IntN(p.keys)
		for i := at + len(digits) - 1; i >= at; i-- {
			message[i] = byte('0' + n%10)
			n /= 10
		}
	}
}
