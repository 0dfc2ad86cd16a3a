package transport

import (
	"context"
	"errors"
	"io"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Services is a registry of gRPC services. It answers the calls of services that have generated code. Other services
// are only described here, for reflection. The zero value is an empty registry.
type Services struct {
	// Unary is called around each unary call; it may be nil.
	Unary grpc.UnaryServerInterceptor

	infos   map[string]grpc.ServiceInfo
	methods map[string]*StreamMethod
}

var _ grpc.ServiceRegistrar = (*Services)(nil)

// Streams returns the methods, for Options.
func (s *Services) Streams() map[string]*StreamMethod { return s.methods }

// GetServiceInfo returns the services by name.
func (s *Services) GetServiceInfo() map[string]grpc.ServiceInfo { return maps.Clone(s.infos) }

// RegisterService implements grpc.ServiceRegistrar.
func (s *Services) RegisterService(desc *grpc.ServiceDesc, service any) {
	s.register(desc, service, nil)
}

// Admitting returns a registrar for services whose streams call admit first: see StreamMethod.Admit.
func (s *Services) Admitting(admit func(*intake.Conn) (end func(), rejection string)) *Admitting {
	return &Admitting{s, admit}
}

// Admitting is Services with a separate bound.
type Admitting struct {
	*Services

	admit func(*intake.Conn) (end func(), rejection string)
}

// RegisterService implements grpc.ServiceRegistrar.
func (a *Admitting) RegisterService(desc *grpc.ServiceDesc, service any) {
	a.register(desc, service, a.admit)
}

// Describe adds a service that is answered elsewhere.
func (s *Services) Describe(desc *grpc.ServiceDesc) {
	info := grpc.ServiceInfo{Metadata: desc.Metadata}
	for _, m := range desc.Methods {
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.MethodName})
	}
	for _, m := range desc.Streams {
		info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.StreamName, IsClientStream: m.ClientStreams,
			IsServerStream: m.ServerStreams})
	}
	if s.infos == nil {
		s.infos, s.methods = make(map[string]grpc.ServiceInfo), make(map[string]*StreamMethod)
	}
	s.infos[desc.ServiceName] = info
}

// Add adds a method that handles the bytes of messages.
func (s *Services) Add(path string, m *StreamMethod) { s.methods[path] = m }

func (s *Services) register(desc *grpc.ServiceDesc, service any, admit func(*intake.Conn) (func(), string)) {
	s.Describe(desc)
	for _, m := range desc.Methods {
		s.Add("/"+desc.ServiceName+"/"+m.MethodName, &StreamMethod{Serve: func(st *Stream) error {
			g := &generated{wire: st, unary: true}
			answer, err := m.Handler(service, g.Context(), g.RecvMsg, s.Unary)
			if err != nil {
				return err
			}
			return g.SendMsg(answer)
		}})
	}
	for _, m := range desc.Streams {
		s.Add("/"+desc.ServiceName+"/"+m.StreamName, &StreamMethod{Admit: admit, Serve: func(st *Stream) error {
			return m.Handler(service, &generated{wire: st, unary: !m.ClientStreams})
		}})
	}
}

// generated adapts a stream for generated code.
type generated struct {
	wire  *Stream
	unary bool // the client sends a single message
}

var _ grpc.ServerStream = (*generated)(nil)

// Context implements grpc.ServerStream.
func (g *generated) Context() context.Context {
	p := &peer.Peer{Addr: g.wire.RemoteAddr()}
	if t := g.wire.TLS(); t != nil {
		p.AuthInfo = credentials.TLSInfo{State: *t,
			CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	return peer.NewContext(g.wire.Context(), p)
}

// RecvMsg implements grpc.ServerStream.
func (g *generated) RecvMsg(m any) error {
	message, err := g.wire.Recv()
	if err != nil {
		if g.unary && errors.Is(err, io.EOF) {
			return errUnexpected
		}
		return err
	}
	if err := proto.Unmarshal(message, m.(proto.Message)); err != nil {
		return status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	if !g.unary {
		return nil
	}
	if _, err := g.wire.Recv(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = status.Error(codes.Internal, secondMessage)
		}
		return err
	}
	return nil
}

// SendMsg implements grpc.ServerStream.
func (g *generated) SendMsg(m any) error {
	message, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return status.Errorf(codes.Internal, "grpc: error while marshaling: %v", err)
	}
	return g.wire.Send(message)
}

// The services here send no metadata.

// SetHeader implements grpc.ServerStream.
func (g *generated) SetHeader(metadata.MD) error { return errNoMetadata }

// SendHeader implements grpc.ServerStream.
func (g *generated) SendHeader(metadata.MD) error { return errNoMetadata }

// SetTrailer implements grpc.ServerStream.
func (g *generated) SetTrailer(metadata.MD) {}

var errNoMetadata = status.Error(codes.Internal, "the built-in server sends no metadata of services")
