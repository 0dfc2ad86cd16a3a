package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

const (
	domain         = "bench"
	valuePrefix    = "customer-"
	digits         = "00000000" // stands for the number in a value
	maxKeys        = 100_000_000
	maxDescriptors = 100
)

func descriptorKey(i int) string { return fmt.Sprintf("user%d", i) }

// payload is an encoded request, a gRPC message with its frame. Only the numbers in its values change between calls,
// and they have a fixed width. So encoding a request means copying it and writing the digits.
type payload struct {
	message []byte
	numbers []number
	headers []string // names and values, sent with every request in addition to the headers that gRPC needs
	envoy   bool     // send the headers of Envoy's calls, instead of a Go client's
	tracing envoytest.Tracing
	then    *payload // sent with the same numbers when this one is answered; nil: nothing
}

// number is a number in a message.
type number struct {
	at    int // where its digits are
	below int // it is smaller than this
}

// newPayload encodes a request with a number of descriptors, each with one of a number of values.
func newPayload(keys, descriptors int) *payload {
	req := &ratelimitv3.RateLimitRequest{Domain: domain}
	for i := range descriptors {
		req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: descriptorKey(i), Value: valuePrefix + digits}},
		})
	}
	return encode(req, keys)
}

// encode encodes a request. The numbers in its values are below the given bounds, in turns.
func encode(req *ratelimitv3.RateLimitRequest, bounds ...int) *payload {
	body, err := proto.Marshal(req)
	if err != nil {
		panic("a request of our own cannot be encoded: " + err.Error())
	}
	p := &payload{message: http2test.Message(len(body), body)}
	for at := 0; ; {
		next := bytes.Index(p.message[at:], []byte(digits))
		if next < 0 {
			return p
		}
		p.numbers = append(p.numbers, number{at: at + next, below: bounds[len(p.numbers)%len(bounds)]})
		at += next + len(digits)
	}
}

// draw writes new numbers into a copy of the message.
func (p *payload) draw(message []byte, random *rand.Rand) {
	for _, to := range p.numbers {
		n := random.IntN(to.below)
		for i := to.at + len(digits) - 1; i >= to.at; i-- {
			message[i] = byte('0' + n%10)
			n /= 10
		}
	}
}
