package serviceclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// Options describe a connection to a server.
type Options struct {
	Server string // host:port, or unix:PATH; required

	TLS        bool   // the connection is encrypted; CA, Cert and ServerName turn this on too
	CA         string // file of the authorities to trust; empty means the system's. - is the standard input here and below
	Cert, Key  string // files of the client certificate; empty without one
	ServerName string // the name that the server's certificate must have; empty means the host of Server

	Token   string        // the bearer token to send; empty without one
	NoToken bool          // the command has no flag for a token, because the gRPC port needs none
	Timeout time.Duration // timeout of one call; default 5 s
}

// Encrypted reports whether the connection will be encrypted.
func (o *Options) Encrypted() bool { return o.TLS || o.CA != "" || o.Cert != "" || o.ServerName != "" }

// Client is a connection to a server.
type Client struct {
	o    Options
	conn *grpc.ClientConn
}

// Dial prepares a connection. Nothing is sent before the first call.
func Dial(o Options) (*Client, error) {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	secure := insecure.NewCredentials()
	if o.Encrypted() {
		config, err := o.config()
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(o.Server, grpc.WithTransportCredentials(secure), grpc.WithUserAgent("ratelimitd"),
		grpc.WithDisableRetry(), grpc.WithUnaryInterceptor(seeAnswer))
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", o.Server, err)
	}
	return &Client{o: o, conn: conn}, nil
}

func (o *Options) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.CA != "" {
		pem, err := stdin.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authorities %s: no certificate in it", o.CA)
		}
	}
	switch {
	case o.Cert != "" && o.Key == "":
		return nil, fmt.Errorf("the certificate %s needs its key: name both files, or neither", o.Cert)
	case o.Cert == "" && o.Key != "":
		return nil, fmt.Errorf("the key %s needs its certificate: name both files, or neither", o.Key)
	}
	if o.Cert != "" {
		pair, err := o.certificate()
		if err != nil {
			return nil, fmt.Errorf("certificate %s and key %s: %w", stdin.NameOf(o.Cert), stdin.NameOf(o.Key), err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func (o *Options) certificate() (tls.Certificate, error) {
	cert, err := stdin.ReadFile(o.Cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := stdin.ReadFile(o.Key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// Close ends the connection.
func (c *Client) Close() { _ = c.conn.Close() }

// within adds the timeout and the token to the context of a call.
func (c *Client) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.o.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.o.Token)
	}
	return context.WithTimeout(ctx, c.o.Timeout)
}

// ask calls a method of a service.
func ask[Q, A any](ctx context.Context, c *Client, method func(context.Context, Q, ...grpc.CallOption) (A, error),
	request Q) (answer A, _ error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := method(ctx, request)
	if err != nil {
		return answer, c.failure(err)
	}
	return got, nil
}

// unanswered is the error of a call that no server has answered.
type unanswered struct{ error }

// GRPCStatus is the status that the connection made up.
func (e *unanswered) GRPCStatus() *status.Status { return status.Convert(e.error) }

// seeAnswer tells the errors of calls that no server has answered from those that a server sent.
func seeAnswer(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	var header, trailer metadata.MD
	err := call(ctx, method, request, answer, conn, append(opts, grpc.Header(&header), grpc.Trailer(&trailer))...)
	if err != nil && len(header) == 0 && len(trailer) == 0 {
		return &unanswered{err}
	}
	return err
}

// failure is the error of a call, for people: the server, the status, and a hint on how to fix it.
func (c *Client) failure(err error) error {
	s := status.Convert(err)
	hint := ""
	switch s.Code() {
	case codes.Unavailable:
		if !errors.As(err, new(*unanswered)) {
			break // the server itself answered UNAVAILABLE
		}
		hint = "; is a server listening there, and do both sides use TLS, or neither?"
		if c.o.Encrypted() {
			hint = "; is a server listening there with TLS, and do both sides trust each other's certificates?"
		}
	case codes.Unimplemented:
		hint = "; is that the right port? The gRPC port makes decisions, the admin port shows counters"
	case codes.Unauthenticated:
		hint = "; give the command a token with --token-file or RATELIMITD_ADMIN_TOKEN"
		if c.o.NoToken {
			hint = "; is that the right port? The admin port needs a token, and makes no decisions: the gRPC port does"
		}
	case codes.DeadlineExceeded:
		hint = fmt.Sprintf("; no answer within %s", c.o.Timeout)
	}
	return fmt.Errorf("server %s: %s: %s%s", c.o.Server, codeName(s.Code()), s.Message(), hint)
}

// codeName is a code as the documentation of gRPC writes it.
func codeName(c codes.Code) string {
	if text, ok := codeNames[c]; ok {
		return text
	}
	return c.String()
}

var codeNames = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.PermissionDenied: "PERMISSION_DENIED",
	codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL",
	codes.Aborted: "ABORTED", codes.FailedPrecondition: "FAILED_PRECONDITION",
	codes.Unavailable: "UNAVAILABLE", codes.Unauthenticated: "UNAUTHENTICATED",
}
