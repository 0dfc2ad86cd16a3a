package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	adminconnect "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1/adminv1connect"
)

// maxMessageBytes is the largest request to a service, unless four of the longest texts need more. Its entries are
// counted only when it has been decoded, and then empty ones take about fifty times the bytes that they had.
const maxMessageBytes = 256 << 10

// maxAnswerBytes is the largest list in an answer. Clients with gRPC's defaults reject messages above 4 MiB.
const maxAnswerBytes = 3 << 20

// serviceNames are the services that reflection lists.
var serviceNames = []string{
	"grpc.reflection.v1.ServerReflection",
	"grpc.reflection.v1alpha.ServerReflection",
	adminconnect.AdminServiceName,
	adminconnect.CounterServiceName,
	adminconnect.OverrideServiceName,
	adminconnect.UsageServiceName,
	adminconnect.FleetServiceName,
}

// addServices adds the services. Each method is a path that answers POST, in the form of the request's content type:
// gRPC, gRPC-Web, or plain JSON. No method answers GET, which web pages of any origin may send.
func (s *Server) addServices(mux *http.ServeMux, opts *Options) {
	with := connect.WithHandlerOptions(
		connect.WithReadMaxBytes(max(maxMessageBytes, 4*opts.Bounds.MaxTextBytes)),
		connect.WithRecover(func(_ context.Context, call connect.Spec, _ http.Header, p any) error {
			return connect.NewError(connect.CodeInternal, errors.New(status.Convert(s.shared.Panicked(p,
				call.Procedure)).Message()))
		}),
		connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}),
	)
	mux.Handle(adminconnect.NewAdminServiceHandler(&admin{rules: opts.Rules, bounds: opts.Bounds, hotKeys: opts.HotKeys,
		shares: opts.Shares, host: opts.Host, regions: opts.Regions}, with))
	counters := &counters{counters: opts.Counters, explain: opts.Rules.Explain, regions: opts.Regions, bounds: opts.Bounds,
		log: s.shared.Log}
	mux.Handle(adminconnect.NewCounterServiceHandler(counters, with))
	mux.Handle(adminconnect.NewOverrideServiceHandler(&overrides{Overrides: opts.Overrides, tree: opts.Rules.tree,
		counters: counters, log: s.shared.Log}, with))
	mux.Handle(adminconnect.NewUsageServiceHandler(&usages{usage: opts.Usage, counters: opts.Counters,
		tree: opts.Rules.tree, bounds: opts.Bounds}, with))
	mux.Handle(adminconnect.NewFleetServiceHandler(&replicas{fleet: opts.Fleet}, with))
	reflector := grpcreflect.NewStaticReflector(serviceNames...)
	mux.Handle(grpcreflect.NewHandlerV1(reflector, with))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, with))
}

// isService reports whether a path is below one of the services.
func isService(path string) bool {
	service, _, found := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if found {
		for _, name := range serviceNames {
			if service == name {
				return true
			}
		}
	}
	return false
}

// calls prepares calls of the services for next. Other requests go to next as they are.
func calls(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !isGRPC(r):
		case !isService(r.URL.Path):
			writeError(w, r, connect.NewError(connect.CodeUnimplemented, errors.New("no such service on this port")))
			return
		case r.ProtoMajor >= 2:
			// The timeout for reading a request does not fit a stream, which may continue.
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		}
		next.ServeHTTP(w, r)
	})
}

// isGRPC reports whether a request is a gRPC or gRPC-Web call.
func isGRPC(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

var errorWriter = connect.NewErrorWriter()

// writeError answers a call with an error in the form that the client reads. Other requests get JSON.
func writeError(w http.ResponseWriter, r *http.Request, err *connect.Error) {
	w.Header().Set("Cache-Control", "no-store")
	_ = errorWriter.Write(w, r, err)
}

// strictJSON reads and writes messages as JSON. It rejects fields that a message does not have: a misspelled one must
// not have the effect of one that is absent.
type strictJSON struct{ name string }

// Name implements connect.Codec.
func (c strictJSON) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c strictJSON) Marshal(m any) ([]byte, error) {
	message, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", m)
	}
	return protojson.Marshal(message)
}

// Unmarshal implements connect.Codec.
func (c strictJSON) Unmarshal(data []byte, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", m)
	}
	return protojson.Unmarshal(data, message)
}

// errorOf is the answer to a call that failed with an error of the limiter.
func errorOf(err error) error {
	return connect.NewError(connect.Code(grpcstatus.Code(err)), errors.New(grpcstatus.Message(err)))
}
