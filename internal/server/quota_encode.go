package server

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
)

const (
	// Bounds of one message: a client that does not read costs this much.
	maxAnswerActions = 500
	maxAnswerBytes   = 32 << 10 // one action may be longer
)

// The numbers of envoy.type.v3.RateLimitStrategy.BlanketRule.
const (
	blanketAllowAll = 0
	blanketDenyAll  = 1
)

// encodeActions encodes the first actions as an envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse, and returns
// the others. An empty assignment is left out: if Envoy received one, it would not renew its present assignment.
func encodeActions(all []assigner.Action) (b []byte, sent int, rest []assigner.Action) {
	for i := range all {
		if sent == maxAnswerActions || len(b) >= maxAnswerBytes {
			return b, sent, all[i:]
		}
		if a := &all[i]; a.Abandon || a.Assignment.Kind != quota.None {
			b = appendMessage(b, 1, sizeAction(a))
			b = appendAction(b, a)
			sent++
		}
	}
	return b, sent, nil
}

func appendMessage(b []byte, num protowire.Number, size int) []byte {
	return protowire.AppendVarint(append(b, byte(num<<3)|byte(protowire.BytesType)), uint64(size))
}

func sizeMessage(size int) int { return 1 + protowire.SizeBytes(size) }

func appendAction(b []byte, a *assigner.Action) []byte {
	b = appendMessage(b, 1, sizeBucketID(a.ID))
	for i := range a.ID {
		e := &a.ID[i]
		b = appendMessage(b, 1, sizeString(e.Key)+sizeString(e.Value))
		b = appendString(b, 1, e.Key)
		b = appendString(b, 2, e.Value)
	}
	if a.Abandon {
		return appendMessage(b, 3, 0)
	}
	b = appendMessage(b, 2, sizeAssignment(&a.Assignment))
	return appendAssignment(b, &a.Assignment)
}

func sizeAction(a *assigner.Action) int {
	n := sizeMessage(sizeBucketID(a.ID))
	if a.Abandon {
		return n + sizeMessage(0)
	}
	return n + sizeMessage(sizeAssignment(&a.Assignment))
}

func sizeBucketID(id []descriptor.Entry) int {
	n := 0
	for i := range id {
		n += sizeMessage(sizeString(id[i].Key) + sizeString(id[i].Value))
	}
	return n
}

func appendAssignment(b []byte, a *quota.Assignment) []byte {
	b = appendDuration(b, 2, a.TTL)
	b = appendMessage(b, 3, sizeStrategy(a))
	switch a.Kind {
	case quota.AllowAll:
		// a oneof field: its default must be encoded
		return append(b, 1<<3|byte(protowire.VarintType), blanketAllowAll)
	case quota.DenyAll:
		return append(b, 1<<3|byte(protowire.VarintType), blanketDenyAll)
	default:
		b = appendMessage(b, 3, sizeTokenBucket(a))
		b = appendUint(b, 1, uint64(a.MaxTokens))
		b = appendMessage(b, 2, sizeUint(uint64(a.Fill)))
		b = appendUint(b, 1, uint64(a.Fill))
		return appendDuration(b, 3, a.Interval)
	}
}

func sizeAssignment(a *quota.Assignment) int {
	return sizeDuration(a.TTL) + sizeMessage(sizeStrategy(a))
}

func sizeStrategy(a *quota.Assignment) int {
	if a.Kind != quota.Tokens {
		return 2
	}
	return sizeMessage(sizeTokenBucket(a))
}

func sizeTokenBucket(a *quota.Assignment) int {
	return sizeUint(uint64(a.MaxTokens)) + sizeMessage(sizeUint(uint64(a.Fill))) + sizeDuration(a.Interval)
}

func sizeDuration(d time.Duration) int {
	seconds, nanos := splitDuration(d)
	return sizeMessage(sizeUint(seconds) + sizeUint(nanos))
}
