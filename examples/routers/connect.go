package routers

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
)

// Connect limits each method. A plain 429 would reach clients as "unavailable", so connect writes denials in the
// protocol of the request: Connect, gRPC or gRPC-Web.
func Connect(limiter limits.Decider) http.Handler {
	denials := connect.NewErrorWriter()
	limit := httplimit.New(limiter, httplimit.Options{
		Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Pattern("route").Or("none")}},
		Denied: func(w http.ResponseWriter, r *http.Request, d limits.Decision) {
			code := connect.CodeResourceExhausted
			if d.Source == limits.FailClosed {
				code = connect.CodeUnavailable
			}
			_ = denials.Write(w, r, connect.NewError(code, errors.New("too many requests")))
		},
	})

	mux := http.NewServeMux() // a generated handler goes into it in the same way
	mux.Handle(greet, connect.NewUnaryHandler(greet, hello))
	mux.Handle(watch, connect.NewServerStreamHandler(watch, hellos))
	return limit(mux)
}

const (
	greet = "/hello.v1.Hello/Greet"
	watch = "/hello.v1.Hello/Watch"
)

type name = wrapperspb.StringValue

func hello(_ context.Context, r *connect.Request[name]) (*connect.Response[name], error) {
	return connect.NewResponse(wrapperspb.String("hello " + r.Msg.GetValue())), nil
}

func hellos(_ context.Context, r *connect.Request[name], s *connect.ServerStream[name]) error {
	return s.Send(wrapperspb.String("hello " + r.Msg.GetValue()))
}
