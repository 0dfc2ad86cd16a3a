package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/grpclimit"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate/gatetest"
)

// service answers calls with its functions.
type service struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	output func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error
	duplex func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (s *service) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary == nil {
		return &testpb.SimpleResponse{}, nil
	}
	return s.unary(ctx, r)
}

func (s *service) StreamingOutputCall(r *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	if s.output == nil {
		return stream.Send(&testpb.StreamingOutputCallResponse{})
	}
	return s.output(r, stream)
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return s.duplex(stream)
}

// recovers answers INTERNAL for a panic, as services do.
func recovers(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if recover() != nil {
			err = status.Error(codes.Internal, "panic")
		}
	}()
	return handler(ctx, req)
}

func recoversStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if recover() != nil {
			err = status.Error(codes.Internal, "panic")
		}
	}()
	return handler(srv, stream)
}

// serve starts a server on a socket and returns a client of it.
func serve(t *testing.T, s *service, d limits.Decider, o grpclimit.Options, dial ...grpc.DialOption) testpb.TestServiceClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recovers, grpclimit.UnaryServerInterceptor(d, o)),
		grpc.ChainStreamInterceptor(recoversStream, grpclimit.StreamServerInterceptor(d, o)),
	)
	testpb.RegisterTestServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

var byCustomer = []grpclimit.Descriptor{{grpclimit.Metadata("X-Api-Key", "customer")}}

// as returns the context of calls with metadata, given as pairs.
func as(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// retryInfo returns the delay in an error, or false without one.
func retryInfo(err error) (time.Duration, bool) {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

func TestDenial(t *testing.T) { gatetest.Each(t, gatetest.Rules, testDenial) }

func testDenial(t *testing.T, l gatetest.Counting) {
	c := serve(t, &service{}, l, grpclimit.Options{Domain: "api", Descriptors: byCustomer})
	ctx := as(t, "x-api-key", "ann")
	if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	stream, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	check := func(err error, header metadata.MD) {
		t.Helper()
		wait, ok := retryInfo(err)
		if status.Code(err) != codes.ResourceExhausted || !ok || wait <= 0 || wait > 366*24*time.Hour {
			t.Errorf("%v, come back in %s", err, wait)
		}
		if got := fmt.Sprint(header["ratelimit-limit"], header["ratelimit-remaining"], len(header["ratelimit-reset"]), len(header["retry-after"])); got != "[2] [0] 1 1" {
			t.Errorf("%s: %v", got, header)
		}
	}
	var header metadata.MD
	_, err = c.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Header(&header))
	check(err, header)
	stream, err = c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	header, _ = stream.Header()
	check(err, header)
	if _, err := c.UnaryCall(as(t, "x-api-key", "bob"), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("another customer: %v", err)
	}
}

func TestHeadersOfAllowedCalls(t *testing.T) {
	gatetest.Each(t, gatetest.Rules, testHeadersOfAllowedCalls)
}

func testHeadersOfAllowedCalls(t *testing.T, l gatetest.Counting) {
	c := serve(t, &service{}, l, grpclimit.Options{Domain: "api", Descriptors: byCustomer, Headers: true})
	var header metadata.MD
	if _, err := c.UnaryCall(as(t, "x-api-key", "ann"), &testpb.SimpleRequest{}, grpc.Header(&header)); err != nil || fmt.Sprint(header["ratelimit-remaining"]) != "[1]" {
		t.Errorf("%v %v", header, err)
	}
}

// Headers that the rules name are sent instead, even if hits are reserved.
func TestHeadersOfRules(t *testing.T) {
	gatetest.Each(t, "headers: [ietf]\n"+gatetest.Rules, func(t *testing.T, l gatetest.Counting) {
		for want, o := range map[string]grpclimit.Options{
			`["year";q=2;w=31536000]`: {Domain: "api", Descriptors: byCustomer},
			`["year";q=100;w=31536000]`: {
				Domain: "api", Descriptors: []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "tokens")}},
				Actual: func(context.Context, *grpclimit.Call) limits.Amount { return limits.Amount{Hits: 1} },
			},
		} {
			var header metadata.MD
			_, err := serve(t, &service{}, l, o).UnaryCall(as(t, "x-api-key", "ann"), &testpb.SimpleRequest{}, grpc.Header(&header))
			if err != nil || fmt.Sprint(header["ratelimit-policy"]) != want {
				t.Errorf("%v %v, want %s", header, err, want)
			}
		}
	})
}

// The denial of a call larger than its limit has no time for a retry.
func TestNever(t *testing.T) { gatetest.Each(t, gatetest.Rules, testNever) }

func testNever(t *testing.T, l gatetest.Counting) {
	c := serve(t, &service{}, l, grpclimit.Options{
		Domain: "api", Descriptors: byCustomer, Cost: func(context.Context, *grpclimit.Call) limits.Amount { return limits.Amount{Hits: 3} },
	})
	_, err := c.UnaryCall(as(t, "x-api-key", "ann"), &testpb.SimpleRequest{})
	if wait, ok := retryInfo(err); status.Code(err) != codes.ResourceExhausted || ok {
		t.Errorf("%v, come back in %s", err, wait)
	}
}

func TestKeys(t *testing.T) {
	local := netip.MustParsePrefix("127.0.0.0/8")
	claim := func(_ context.Context, c *grpclimit.Call) (string, bool) {
		r, ok := c.Request.(*testpb.SimpleRequest)
		return string(r.GetPayload().GetBody()), ok
	}
	for _, c := range []struct {
		name  string
		keys  []grpclimit.Descriptor
		pairs []string
		want  string
	}{
		{"metadata", byCustomer, []string{"x-api-key", "ann"}, "[{customer ann}]"},
		{"several values", byCustomer, []string{"x-api-key", "ann", "x-api-key", "bob"}, "[{customer ann}]"},
		{"no metadata", byCustomer, nil, "none"},
		{"an empty value", byCustomer, []string{"x-api-key", ""}, "none"},
		{"a value for a missing one", []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "customer").Or("nobody")}}, nil, "[{customer nobody}]"},
		{"a method", []grpclimit.Descriptor{byCustomer[0], {grpclimit.Method("method")}}, nil, "[{method /grpc.testing.TestService/UnaryCall}]"},
		{"a function", []grpclimit.Descriptor{{grpclimit.Func("user", claim)}}, nil, "[{user carl}]"},
		{"a secret", []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "customer").Hashed()}}, []string{"x-api-key", "ann"}, "[{customer sha256:SZFeDX1LQC4wF9AQvBwOg8rG}]"},
		{"a long value", byCustomer, []string{"x-api-key", strings.Repeat("x", 1000)}, "[{customer sha256:RPg1RJSlugO6F5Ko0-nFNMR6}]"},
		{"the peer", []grpclimit.Descriptor{{grpclimit.PeerAddress("address")}}, []string{"x-forwarded-for", "192.0.2.1"}, "[{address 127.0.0.1}]"},
		{"behind a proxy", []grpclimit.Descriptor{{grpclimit.PeerAddress("address", local)}},
			[]string{"x-forwarded-for", "203.0.113.9", "x-forwarded-for", "198.51.100.7, 127.0.0.3"}, "[{address 198.51.100.7}]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &gatetest.Decider{Answer: limits.Decision{Allowed: true}}
			client := serve(t, &service{}, a, grpclimit.Options{Domain: "api", Descriptors: c.keys})
			if _, err := client.UnaryCall(as(t, c.pairs...), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte("carl")}}); err != nil {
				t.Fatal(err)
			}
			if got := a.Entries(); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// A client cannot have more than its limit by writing other addresses into x-forwarded-for.
func TestSpoofedAddress(t *testing.T) {
	gatetest.SpoofedAddress(t, func(d limits.Decider, trusted []netip.Prefix) func(string) bool {
		c := serve(t, &service{}, d, grpclimit.Options{Domain: "api", Descriptors: []grpclimit.Descriptor{{grpclimit.PeerAddress("address", trusted...)}}})
		return func(forwarded string) bool {
			_, err := c.UnaryCall(as(t, "x-forwarded-for", forwarded), &testpb.SimpleRequest{})
			return err == nil
		}
	})
}

func TestNoDecision(t *testing.T) {
	unavailable := func(err error) bool { return status.Code(err) == codes.Unavailable }
	gatetest.NoDecision(t, unavailable, func(d limits.Decider, onFailure limits.OnFailure, log *slog.Logger) error {
		o := grpclimit.Options{Domain: "api", Descriptors: byCustomer, Logger: log, OnFailure: onFailure}
		_, err := serve(t, &service{}, d, o).UnaryCall(as(t, "x-api-key", "ann"), &testpb.SimpleRequest{})
		return err
	})
}

// A delayed call waits, and is denied immediately if its turn comes after its deadline.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intercept := grpclimit.UnaryServerInterceptor(&gatetest.Decider{Answer: limits.Decision{Allowed: true, Delay: 2 * time.Second}}, grpclimit.Options{Domain: "api", Descriptors: byCustomer})
		ask := func(ctx context.Context) error {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-api-key", "ann"))
			_, err := intercept(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
			return err
		}
		start := time.Now()
		if err := ask(t.Context()); err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		err := ask(ctx)
		if wait, _ := retryInfo(err); wait != 2*time.Second || time.Since(start) != 0 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := ask(ctx); status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

// While a call runs, its estimated cost is reserved. At its end the real cost is charged.
func TestActualCost(t *testing.T) { gatetest.Each(t, gatetest.Rules, testActualCost) }

func testActualCost(t *testing.T, l gatetest.Counting) {
	s := &service{
		unary: func(_ context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if n := gatetest.Left(t, l); n > 50 {
				t.Errorf("while it runs, %d tokens are left", n)
			}
			switch string(r.GetPayload().GetBody()) {
			case "error":
				return nil, status.Error(codes.NotFound, "nothing")
			case "panic":
				panic("broken")
			}
			return &testpb.SimpleResponse{Payload: r.GetPayload()}, nil
		},
		duplex: func(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if n := gatetest.Left(t, l); n > 50 {
				t.Errorf("while it runs, %d tokens are left", n)
			}
			for {
				r, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil || string(r.GetPayload().GetBody()) == "panic" {
					panic("broken")
				}
				if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
					return err
				}
			}
		},
	}
	c := serve(t, s, l, grpclimit.Options{
		Domain:      "api",
		Descriptors: []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "tokens")}},
		Cost:        func(context.Context, *grpclimit.Call) limits.Amount { return limits.Amount{Hits: 50} },
		Actual: func(_ context.Context, c *grpclimit.Call) limits.Amount {
			if r, ok := c.Request.(*testpb.SimpleRequest); ok && string(r.GetPayload().GetBody()) == "panic" {
				t.Error("a call that used nothing is charged")
			}
			if status.Code(c.Err) == codes.NotFound {
				return limits.Amount{}
			}
			var hits uint64
			switch reply := c.Reply.(type) {
			case *testpb.SimpleResponse:
				hits = uint64(len(reply.GetPayload().GetBody()))
			case *testpb.StreamingOutputCallResponse:
				hits = uint64(len(reply.GetPayload().GetBody()))
			}
			return limits.Amount{Hits: hits + uint64(c.Received+c.Sent)}
		},
	})
	want := gatetest.Left(t, l)
	ctx := as(t, "x-api-key", "ann")
	for _, x := range []struct {
		body string
		cost uint64
		code codes.Code
	}{{"12345", 5, codes.OK}, {"", 0, codes.OK}, {"error", 0, codes.NotFound}, {"panic", 0, codes.Internal}} {
		_, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(x.body)}})
		want -= x.cost
		if got := gatetest.Left(t, l); status.Code(err) != x.code || got != want {
			t.Errorf("%q: %v, %d tokens are left, want %d", x.body, err, got, want)
		}
	}
	for _, x := range []struct {
		bodies []string
		cost   uint64
		code   codes.Code
	}{{[]string{"1", "123"}, 3 + 2 + 2, codes.OK}, {nil, 0, codes.OK}, {[]string{"panic"}, 0, codes.Internal}, {[]string{"12", "panic"}, 2 + 2 + 1, codes.Internal}} {
		stream, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range x.bodies {
			if err := stream.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(body)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		want -= x.cost
		if got := gatetest.Left(t, l); status.Code(err) != x.code || got != want {
			t.Errorf("%q: %v, %d tokens are left, want %d", x.bodies, err, got, want)
		}
	}
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for want, o := range map[string]grpclimit.Options{
		"Domain is empty": {Descriptors: byCustomer},
		"no Descriptors":  {Domain: "api"},
		"has no keys":     {Domain: "api", Descriptors: []grpclimit.Descriptor{{}}},
		"a Key is empty":  {Domain: "api", Descriptors: []grpclimit.Descriptor{{grpclimit.Key{}}}},
		"limits.Reserver": {Domain: "api", Descriptors: byCustomer, Actual: func(context.Context, *grpclimit.Call) limits.Amount { return limits.Amount{} }},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			}()
			grpclimit.StreamServerInterceptor(&gatetest.Decider{}, o)
		}()
	}
}
