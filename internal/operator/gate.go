package operator

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Tokens finds the owner of a bearer token. It is used concurrently.
type Tokens interface {
	// Owner is the name of the token's owner, if the token is known. It fails if the tokens cannot be read.
	Owner(token string) (name string, known bool, err error)
}

// gate checks every request on the debug port, for pages and gRPC services. A request passes if its host name is known, if
// it comes from no web page of another origin, and if it has the required token and certificate.
type gate struct {
	tokens       Tokens // nil: no token is required
	certificates bool   // every client needs one
	names        hostNames
	origins      *http.CrossOriginProtection
	log          *slog.Logger
	some         logging.Sampler // of the refusals
}

func newGate(opts *Options) *gate {
	names := hostNames{"localhost", "*.localhost"}
	if host, _, err := net.SplitHostPort(opts.Addr); err == nil && host != "" {
		names = append(names, host)
	}
	return &gate{
		tokens:       opts.Access.Tokens,
		certificates: opts.Access.ClientCerts,
		names:        append(names, opts.Access.HostNames...),
		origins:      http.NewCrossOriginProtection(),
		log:          opts.Shared.Log,
		some:         logging.Sampler{PerSecond: 1},
	}
}

// identity is what is known about the operator behind a request.
type identity struct {
	from        string // address
	token       string // name of the token's owner
	certificate string // subject
}

// attrs is the identity for the log. It never contains a token.
func (o *identity) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("from", o.from)}
	if o.token != "" {
		attrs = append(attrs, slog.String("token_of", o.token))
	}
	if o.certificate != "" {
		attrs = append(attrs, slog.String("certificate", logging.Shorten(o.certificate)))
	}
	return attrs
}

const (
	counterCallsOff = "showing and clearing counters is off: set RATELIMITD_ADMIN_TOKEN_FILE (--admin-token-file), " +
		"or RATELIMITD_ADMIN_TLS_CLIENT_CA (--admin-tls-client-ca) for certificates"
	tokenNeeded = "a token is required: send the header (in gRPC, the metadata) authorization: Bearer TOKEN"
	nameUnknown = "the host name of the request is not allowed: use an IP address or localhost, or add the name " +
		"to RATELIMITD_DEBUG_HOST_NAMES (--debug-host-names)"
)

// countersPath is the prefix of the paths of CounterService's methods.
var countersPath = "/" + adminv1.CounterService_ServiceDesc.ServiceName + "/"

// before is a handler that calls next for the requests that pass the gate.
func (g *gate) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := connectionIdentity(r)
		code, reason, err := g.check(r, &who)
		if code == codes.OK {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, who)))
			return
		}
		g.report(r, &who, reason, err)
		refuse(w, r, code, reason)
	})
}

// check sets the owner of the token. It returns the reason for a refusal, and the error that only the log may show. Where
// certificates are required, a connection without one fails in the handshake; check looks for the certificate all the same.
func (g *gate) check(r *http.Request, who *identity) (code codes.Code, reason string, err error) {
	if !g.names.know(r) {
		return codes.PermissionDenied, nameUnknown, nil
	}
	if err := g.origins.Check(r); err != nil {
		return codes.PermissionDenied, endpoint.OtherOrigin, err
	}
	switch {
	case g.tokens == nil && !g.certificates && strings.HasPrefix(r.URL.Path, countersPath):
		return codes.PermissionDenied, counterCallsOff, nil // resets must have a name in the log
	case g.certificates && who.certificate == "":
		return codes.Unauthenticated, "a client certificate is required", nil
	case g.tokens == nil:
		return codes.OK, "", nil
	}
	token, ok := bearerToken(r)
	if !ok {
		return codes.Unauthenticated, tokenNeeded, nil
	}
	name, known, err := g.tokens.Owner(token)
	switch {
	case err != nil:
		return codes.Unavailable, "the tokens cannot be read: the server's log has the details", err
	case !known:
		return codes.Unauthenticated, "the token is unknown", nil
	}
	who.token = name
	return codes.OK, "", nil
}

// report logs some of the refusals.
func (g *gate) report(r *http.Request, who *identity, reason string, err error) {
	if !g.some.Pick(time.Now()) {
		return
	}
	attrs := append([]slog.Attr{slog.String("path", logging.Shorten(r.URL.Path)), slog.String("reason", reason)}, who.attrs()...)
	if reason == nameUnknown {
		attrs = append(attrs, slog.String("host", logging.Shorten(r.Host)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if n := g.some.Missed(); n > 0 {
		attrs = append(attrs, slog.Int64("not_logged", n))
	}
	g.log.LogAttrs(r.Context(), slog.LevelWarn, "operator refused", attrs...)
}

// refuse answers in the form that the client reads: gRPC has its code in headers of its own.
func refuse(w http.ResponseWriter, r *http.Request, code codes.Code, reason string) {
	if isCall(r) {
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(int(code)))
		h.Set("Grpc-Message", url.PathEscape(reason))
		w.WriteHeader(http.StatusOK)
		return
	}
	httpCode := http.StatusForbidden
	switch code {
	case codes.Unauthenticated:
		httpCode = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	case codes.Unavailable:
		httpCode = http.StatusServiceUnavailable
	}
	endpoint.WriteText(w, httpCode, reason+"\n")
}

type identityKey struct{}

// identityOf is the identity behind a gRPC call.
func identityOf(ctx context.Context) identity {
	who, _ := ctx.Value(identityKey{}).(identity)
	return who
}

// connectionIdentity is what the connection shows: address and certificate.
func connectionIdentity(r *http.Request) identity {
	who := identity{from: r.RemoteAddr}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		leaf := r.TLS.VerifiedChains[0][0]
		who.certificate = leaf.Subject.String()
		for _, uri := range leaf.URIs { // a workload's identity, whose subject is often empty
			who.certificate = strings.TrimLeft(who.certificate+" "+uri.String(), " ")
		}
		if who.certificate == "" {
			who.certificate = strings.Join(append(leaf.DNSNames, "serial "+leaf.SerialNumber.String()), " ")
		}
	}
	return who
}

// bearerToken is the token of a request, if there is exactly one.
func bearerToken(r *http.Request) (string, bool) {
	sent := r.Header["Authorization"]
	if len(sent) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

// hostNames are the host names that requests may use; *.example.org is every name below that, and * is every name. They
// stop DNS rebinding: a web page whose own name resolves to this port's address has the same origin as the port for the
// browser, and only the host name shows the difference.
type hostNames []string

// know reports whether the host name of a request is allowed. An IP address is no name. Over TLS the client has checked
// the name against the certificate.
func (n hostNames) know(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if host == "" || r.TLS != nil && strings.EqualFold(host, r.TLS.ServerName) { // no browser leaves it out
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	for _, name := range n {
		below, wild := strings.CutPrefix(name, "*")
		switch {
		case strings.EqualFold(host, name),
			wild && (below == "" || len(host) > len(below) && strings.EqualFold(host[len(host)-len(below):], below)):
			return true
		}
	}
	return false
}
