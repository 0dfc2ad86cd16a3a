package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
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
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/grpclimit"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate/gatetest"
)

// denial is a denial of a server.
type denial struct {
	code     codes.Code
	delay    *durationpb.Duration // delay in RetryInfo; nil for a denial without RetryInfo
	metadata metadata.MD
	trailer  metadata.MD
}

func (r denial) err() error {
	s := status.New(r.code, "denied")
	if r.delay != nil {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: r.delay})
	}
	return s.Err()
}

func after(d time.Duration) denial {
	return denial{code: codes.ResourceExhausted, delay: durationpb.New(d)}
}

// denying runs a test with a server that denies calls like this and then answers. It returns the times at which calls
// came.
func denying(t *testing.T, o grpclimit.ClientOptions, denials []denial, test func(t *testing.T, c testpb.TestServiceClient)) (times []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		came := func(ctx context.Context) error {
			times = append(times, time.Since(start))
			if len(times) > len(denials) {
				return nil
			}
			r := denials[len(times)-1]
			_ = grpc.SetHeader(ctx, r.metadata)
			_ = grpc.SetTrailer(ctx, r.trailer)
			return r.err()
		}
		listener := bufconn.Listen(1 << 16)
		server := grpc.NewServer()
		testpb.RegisterTestServiceServer(server, &service{
			unary: func(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return &testpb.SimpleResponse{Payload: r.GetPayload()}, came(ctx)
			},
			output: func(r *testpb.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				if string(r.GetPayload().GetBody()) == "late" { // denied after the first message
					_ = stream.Send(&testpb.StreamingOutputCallResponse{})
				}
				if err := came(stream.Context()); err != nil {
					return err
				}
				for range 2 {
					if err := stream.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()}); err != nil {
						return err
					}
				}
				return nil
			},
			duplex: func(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				return came(stream.Context())
			},
		})
		go func() { _ = server.Serve(listener) }()
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
			grpc.WithUnaryInterceptor(grpclimit.UnaryClientInterceptor(o)), grpc.WithStreamInterceptor(grpclimit.StreamClientInterceptor(o)))
		if err != nil {
			t.Fatal(err)
		}
		test(t, testpb.NewTestServiceClient(conn))
		conn.Close()
		server.Stop()
		_ = listener.Close()
	})
	return times
}

// call makes a unary call and checks that the reply is complete.
func call(ctx context.Context, t *testing.T, c testpb.TestServiceClient) error {
	t.Helper()
	r, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte("text")}})
	if err == nil && string(r.GetPayload().GetBody()) != "text" {
		t.Errorf("the reply is %v", r)
	}
	return err
}

// stream makes a call with a stream of answers and reads them.
func stream(ctx context.Context, t *testing.T, c testpb.TestServiceClient, body string) (n int, err error) {
	t.Helper()
	s, err := c.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: []byte(body)}})
	if err != nil {
		return 0, err
	}
	for {
		r, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		case string(r.GetPayload().GetBody()) != body && body != "late":
			t.Errorf("the answer is %v", r)
		}
		n++
	}
}

// A client repeats a call after the server's time, and not exactly then.
func TestRepeats(t *testing.T) {
	for name, c := range map[string]struct {
		denial denial
		from   time.Duration
	}{
		"RetryInfo":        {after(7 * time.Second), 7 * time.Second},
		"RetryInfo of 0":   {after(0), 0},
		"a negative time":  {after(-time.Second), 0},
		"metadata":         {denial{code: codes.ResourceExhausted, metadata: metadata.Pairs("retry-after", "3")}, 3 * time.Second},
		"trailer":          {denial{code: codes.ResourceExhausted, trailer: metadata.Pairs("retry-after", "4")}, 4 * time.Second},
		"both: RetryInfo":  {denial{code: codes.ResourceExhausted, delay: durationpb.New(1500 * time.Millisecond), metadata: metadata.Pairs("retry-after", "2")}, 1500 * time.Millisecond},
		"garbage and more": {denial{code: codes.ResourceExhausted, metadata: metadata.Pairs("retry-after", "soon", "retry-after", "5")}, 5 * time.Second},
	} {
		check := func(kind string, times []time.Duration) {
			t.Helper()
			if len(times) != 2 || times[1] < c.from || times[1] >= c.from+250*time.Millisecond {
				t.Errorf("%s, %s: calls at %v", name, kind, times)
			}
		}
		check("unary", denying(t, grpclimit.ClientOptions{}, []denial{c.denial}, func(t *testing.T, client testpb.TestServiceClient) {
			if err := call(t.Context(), t, client); err != nil {
				t.Error(name, err)
			}
		}))
		check("stream", denying(t, grpclimit.ClientOptions{}, []denial{c.denial}, func(t *testing.T, client testpb.TestServiceClient) {
			if n, err := stream(t.Context(), t, client, "text"); n != 2 || err != nil {
				t.Error(name, n, err)
			}
		}))
	}
}

func TestAttempts(t *testing.T) {
	denials := []denial{after(time.Second), after(time.Second), after(time.Second), after(time.Second)}
	for attempts, want := range map[int]int{0: 4, 1: 1, 2: 2, 5: 5} {
		for kind, ask := range map[string]func(t *testing.T, c testpb.TestServiceClient) error{
			"unary": func(t *testing.T, c testpb.TestServiceClient) error { return call(t.Context(), t, c) },
			"stream": func(t *testing.T, c testpb.TestServiceClient) error {
				_, err := stream(t.Context(), t, c, "x")
				return err
			},
		} {
			times := denying(t, grpclimit.ClientOptions{Attempts: attempts}, denials, func(t *testing.T, c testpb.TestServiceClient) {
				if err := ask(t, c); (err == nil) != (want == 5) || err != nil && status.Code(err) != codes.ResourceExhausted {
					t.Errorf("%d attempts, %s: %v", attempts, kind, err)
				}
			})
			if len(times) != want {
				t.Errorf("%d attempts, %s: calls at %v", attempts, kind, times)
			}
		}
	}
}

// These denials are returned immediately.
func TestReturnsDenials(t *testing.T) {
	for name, c := range map[string]struct {
		denial   denial
		o        grpclimit.ClientOptions
		deadline time.Duration // 0 for no deadline
	}{
		"no time":             {denial{code: codes.ResourceExhausted}, grpclimit.ClientOptions{}, 0},
		"another code":        {denial{code: codes.Unavailable, delay: durationpb.New(time.Second)}, grpclimit.ClientOptions{}, 0},
		"after the deadline":  {after(6 * time.Second), grpclimit.ClientOptions{}, 5 * time.Second},
		"more than MaxWait":   {after(31 * time.Second), grpclimit.ClientOptions{}, 0},
		"a MaxWait of 1 s":    {after(2 * time.Second), grpclimit.ClientOptions{MaxWait: time.Second}, 0},
		"far more, as a text": {denial{code: codes.ResourceExhausted, trailer: metadata.Pairs("retry-after", "9223372036854775807")}, grpclimit.ClientOptions{}, 0},
	} {
		for _, unary := range []bool{true, false} {
			times := denying(t, c.o, []denial{c.denial}, func(t *testing.T, client testpb.TestServiceClient) {
				ctx, start := t.Context(), time.Now()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				var err error
				if unary {
					err = call(ctx, t, client)
				} else {
					_, err = stream(ctx, t, client, "x")
				}
				if status.Code(err) != c.denial.code || time.Since(start) != 0 {
					t.Errorf("%s: %v after %s", name, err, time.Since(start))
				}
			})
			if len(times) != 1 {
				t.Errorf("%s: calls at %v", name, times)
			}
		}
	}
}

// A stream whose first answer has come is not repeated, nor is one of requests.
func TestStreamsThatAreNotRepeated(t *testing.T) {
	times := denying(t, grpclimit.ClientOptions{}, []denial{after(time.Second)}, func(t *testing.T, c testpb.TestServiceClient) {
		if n, err := stream(t.Context(), t, c, "late"); n != 1 || status.Code(err) != codes.ResourceExhausted {
			t.Error(n, err)
		}
	})
	if len(times) != 1 {
		t.Errorf("calls at %v", times)
	}
	times = denying(t, grpclimit.ClientOptions{}, []denial{after(time.Second)}, func(t *testing.T, c testpb.TestServiceClient) {
		s, err := c.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
	})
	if len(times) != 1 {
		t.Errorf("calls at %v", times)
	}
}

// A client that cancels a waiting call gets the error immediately.
func TestCancelled(t *testing.T) {
	for _, unary := range []bool{true, false} {
		denying(t, grpclimit.ClientOptions{}, []denial{after(20 * time.Second)}, func(t *testing.T, c testpb.TestServiceClient) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			var err error
			if unary {
				err = call(ctx, t, c)
			} else {
				_, err = stream(ctx, t, c, "x")
			}
			if status.Code(err) != codes.Canceled || time.Since(start) != time.Second {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		})
	}
}

// script gives one answer after the other, and then the last one again.
type script struct {
	answers []limits.Decision
	asked   int
}

func (s *script) Decide(context.Context, *limits.Request) (limits.Decision, error) {
	d := s.answers[min(s.asked, len(s.answers)-1)]
	s.asked++
	return d, d.Err
}

func TestLimitsItsCalls(t *testing.T) {
	by := []grpclimit.Descriptor{{grpclimit.Method("method")}}
	for _, unary := range []bool{true, false} {
		ask := func(ctx context.Context, t *testing.T, c testpb.TestServiceClient) error {
			if unary {
				return call(ctx, t, c)
			}
			_, err := stream(ctx, t, c, "x")
			return err
		}
		d := &script{answers: []limits.Decision{{RetryAfter: 2 * time.Second}, {Allowed: true}, {Allowed: true, Delay: 3 * time.Second}}}
		times := denying(t, grpclimit.ClientOptions{Decider: d, Domain: "out", Descriptors: by}, []denial{after(time.Second)}, func(t *testing.T, c testpb.TestServiceClient) {
			if err := ask(t.Context(), t, c); err != nil {
				t.Error(err)
			}
		})
		if len(times) != 2 || times[0] < 2*time.Second || times[0] > 2100*time.Millisecond || times[1]-times[0] < 4*time.Second || times[1]-times[0] > 4250*time.Millisecond {
			t.Errorf("calls at %v", times)
		}
		for _, x := range []struct {
			answer    limits.Decision
			onFailure limits.OnFailure
			want      codes.Code
		}{
			{limits.Decision{RetryAfter: limits.Never}, limits.OnFailureDefault, codes.ResourceExhausted},
			{limits.Decision{RetryAfter: time.Minute}, limits.OnFailureDefault, codes.ResourceExhausted},
			{limits.Decision{Err: io.ErrUnexpectedEOF}, limits.OnFailureError, codes.Unavailable},
			{limits.Decision{Err: io.ErrUnexpectedEOF}, limits.OnFailureDefault, codes.OK},
		} {
			o := grpclimit.ClientOptions{Decider: &script{answers: []limits.Decision{x.answer}}, Domain: "out", Descriptors: by, OnFailure: x.onFailure, Logger: slog.New(slog.DiscardHandler)}
			times := denying(t, o, nil, func(t *testing.T, c testpb.TestServiceClient) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := ask(ctx, t, c); status.Code(err) != x.want {
					t.Errorf("%v, want %s", err, x.want)
				}
			})
			if made := len(times) > 0; made != (x.want == codes.OK) {
				t.Errorf("%s: calls at %v", x.want, times)
			}
		}
	}
}

// Both sides together, over a socket.
func TestClientOfOurServer(t *testing.T) {
	gatetest.Each(t, `
domain: api
descriptors:
  - key: customer
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 1}
`, testClientOfOurServer)
}

func testClientOfOurServer(t *testing.T, l gatetest.Counting) {
	o := grpclimit.ClientOptions{Attempts: 1000}
	c := serve(t, &service{}, l, grpclimit.Options{Domain: "api", Descriptors: byCustomer},
		grpc.WithUnaryInterceptor(grpclimit.UnaryClientInterceptor(o)), grpc.WithStreamInterceptor(grpclimit.StreamClientInterceptor(o)))
	ctx, cancel := context.WithTimeout(as(t, "x-api-key", "ann"), time.Minute)
	defer cancel()
	for range 3 {
		if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
			t.Error(err)
		}
		if n, err := stream(ctx, t, c, ""); n != 1 || err != nil {
			t.Error(n, err)
		}
	}
}
