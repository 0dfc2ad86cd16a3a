package server

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

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Tokens knows whose a bearer token is. It is asked by any goroutine.
type Tokens interface {
	// Owner is the name of the token's owner, if it is known. The error says why that cannot be told.
	Owner(token string) (name string, known bool, err error)
}

// gate stands before everything on the operators' port, pages and gRPC services: a request passes if it names this port
// by a name that is known, comes from no web page of another origin, and shows what operators have to show.
type gate struct {
	tokens       Tokens // nil: no token is asked for
	certificates bool   // of every client of the listener
	names        hostNames
	origins      *http.CrossOriginProtection
	log          *slog.Logger
	some         sampler // of the refused
}

func newGate(opts *Options) *gate {
	names := hostNames{"localhost", "*.localhost"}
	if host, _, err := net.SplitHostPort(opts.DebugAddr); err == nil && host != "" {
		names = append(names, host)
	}
	return &gate{
		tokens:       opts.Tokens,
		certificates: opts.DebugClientCerts,
		names:        append(names, opts.DebugHostNames...),
		origins:      http.NewCrossOriginProtection(),
		log:          opts.Log,
		some:         sampler{perSecond: 1},
	}
}

// operator is who calls.
type operator struct {
	from        string // address
	token       string // the name of its owner
	certificate string // its subject
}

// attrs is what the log says of somebody. There is no token in it.
func (o *operator) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("from", o.from)}
	if o.token != "" {
		attrs = append(attrs, slog.String("token_of", o.token))
	}
	if o.certificate != "" {
		attrs = append(attrs, slog.String("certificate", shortened(o.certificate)))
	}
	return attrs
}

const (
	counterCallsOff = "looking at counters and clearing them is off: set RATELIMITD_ADMIN_TOKEN_FILE (--admin-token-file), " +
		"or RATELIMITD_ADMIN_TLS_CLIENT_CA (--admin-tls-client-ca) for certificates"
	tokenNeeded = "a token is needed: send the header (in gRPC, the metadata) authorization: Bearer TOKEN"
	nameUnknown = "this port is not known by the host name of the request: ask it by address or as localhost, or add the name " +
		"to RATELIMITD_DEBUG_HOST_NAMES (--debug-host-names)"
	otherOrigin = "a web page of another origin may not ask this"
)

// countersPath is what the paths of all calls of the CounterService begin with.
var countersPath = "/" + adminv1.CounterService_ServiceDesc.ServiceName + "/"

// before is a handler that asks the gate before it asks next.
func (g *gate) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := caller(r)
		code, reason, err := g.check(r, &who)
		if code == codes.OK {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, who)))
			return
		}
		g.report(r, &who, reason, err)
		turnAway(w, r, code, reason)
	})
}

// check fills in whose token it is. It returns the reason for a refusal, and the error that only the log may show. Where
// certificates are asked for, a connection without one fails in the handshake; check looks for the certificate all the same.
func (g *gate) check(r *http.Request, who *operator) (code codes.Code, reason string, err error) {
	if !g.names.know(r) {
		return codes.PermissionDenied, nameUnknown, nil
	}
	if err := g.origins.Check(r); err != nil {
		return codes.PermissionDenied, otherOrigin, err
	}
	switch {
	case g.tokens == nil && !g.certificates && strings.HasPrefix(r.URL.Path, countersPath):
		return codes.PermissionDenied, counterCallsOff, nil // they change what counts: whoever does that has to be named
	case g.certificates && who.certificate == "":
		return codes.Unauthenticated, "a client certificate is needed", nil
	case g.tokens == nil:
		return codes.OK, "", nil
	}
	token, ok := bearer(r)
	if !ok {
		return codes.Unauthenticated, tokenNeeded, nil
	}
	name, known, err := g.tokens.Owner(token)
	switch {
	case err != nil:
		return codes.Unavailable, "the tokens cannot be read: the server's log has the details", err
	case !known:
		return codes.Unauthenticated, "the token is not known", nil
	}
	who.token = name
	return codes.OK, "", nil
}

// report logs some of the refusals.
func (g *gate) report(r *http.Request, who *operator, reason string, err error) {
	if !g.some.pick(time.Now()) {
		return
	}
	attrs := append([]slog.Attr{slog.String("path", shortened(r.URL.Path)), slog.String("reason", reason)}, who.attrs()...)
	if reason == nameUnknown {
		attrs = append(attrs, slog.String("host", shortened(r.Host)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if n := g.some.missed(); n > 0 {
		attrs = append(attrs, slog.Int64("not_logged", n))
	}
	g.log.LogAttrs(r.Context(), slog.LevelWarn, "operator refused", attrs...)
}

// turnAway answers in the way that the request understands: gRPC has its code in headers of its own.
func turnAway(w http.ResponseWriter, r *http.Request, code codes.Code, reason string) {
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
	writeText(w, httpCode, reason+"\n")
}

type operatorKey struct{}

// operatorOf is who makes a gRPC call.
func operatorOf(ctx context.Context) operator {
	who, _ := ctx.Value(operatorKey{}).(operator)
	return who
}

// caller is what the connection tells.
func caller(r *http.Request) operator {
	who := operator{from: r.RemoteAddr}
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

// bearer is the token that came with a request, if there is exactly one.
func bearer(r *http.Request) (string, bool) {
	sent := r.Header["Authorization"]
	if len(sent) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

// hostNames are the names by which requests may call a port; *.example.org is every name below that, and * is every name.
// A web page whose own name leads to this port's address (DNS rebinding) calls it by that name: for the browser, page and
// port are of one origin then, and only the name tells them apart.
type hostNames []string

// know says whether a request may call the port as it does. An address is nobody's name. Over TLS the client has compared
// the name that it dialled with the certificate.
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
