package operator

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ratelimitd/ratelimitd/internal/operator/console"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// Tokens finds the owner of a bearer token. It is used concurrently.
type Tokens interface {
	// Owner returns the name of the token's owner and the token's role, read or operate. The role is empty if the token is
	// unknown. It fails if the tokens cannot be read.
	Owner(token string) (name, role string, err error)
}

// gate checks every request on the admin port, for pages and services. A request passes if its host name is known, if
// it comes from no web page of another origin, if it has the required token and certificate, and if their roles allow
// it.
type gate struct {
	access       *Access
	tokens       Tokens // nil if no token is required
	certificates bool   // every client needs one
	names        hostNames
	origins      *http.CrossOriginProtection
	log          *slog.Logger
	some         logging.Sampler // limits the log lines about rejections
}

func newGate(opts *Options) *gate {
	names := hostNames{"localhost", "*.localhost"}
	if host, _, err := net.SplitHostPort(opts.Addr); err == nil && host != "" {
		names = append(names, host)
	}
	return &gate{
		access:       &opts.Access,
		tokens:       opts.Access.Tokens,
		certificates: opts.Access.ClientCerts,
		names:        append(names, opts.Access.HostNames...),
		origins:      http.NewCrossOriginProtection(),
		log:          opts.Shared.Log,
		some:         logging.Sampler{PerSecond: 1},
	}
}

// actor identifies the operator behind a request.
type actor struct {
	from        string // address
	token       string // name of the token's owner
	certificate string // subject
	role        string // combined role of the token and the certificate
}

// attrs is the actor for the log. It never contains a token.
func (o *actor) attrs() []slog.Attr {
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
	namelessOff = "showing and clearing counters, and changing overrides, is off: set RATELIMITD_ADMIN_TOKEN_FILE " +
		"(--admin-token-file), " +
		"or RATELIMITD_ADMIN_TLS_CLIENT_CA (--admin-tls-client-ca) for certificates"
	tokenNeeded = "a token is required: send the header (in gRPC, the metadata) authorization: Bearer TOKEN"
	nameUnknown = "the host name of the request is not allowed: use an IP address or localhost, or add the name " +
		"to RATELIMITD_DEBUG_HOST_NAMES (--debug-host-names)"
)

// before is a handler that calls next for the requests that pass the gate.
func (g *gate) before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := connectionActor(r)
		if no := g.check(r, &who); no != nil {
			g.report(r, &who, no)
			no.write(w, r)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, who)))
	})
}

// rejection is why a request does not pass.
type rejection struct {
	code   connect.Code
	reason string
	err    error // only for the log; nil if the reason is complete
}

// check sets the owner of the token, and the role. It returns nil if the request passes. Where certificates are
// required, a connection without a good one fails in the handshake; check looks for the certificate and its names all
// the same.
func (g *gate) check(r *http.Request, who *actor) *rejection {
	if !g.names.know(r) {
		return &rejection{connect.CodePermissionDenied, nameUnknown, nil}
	}
	if err := g.origins.Check(r); err != nil {
		return &rejection{connect.CodePermissionDenied, endpoint.OtherOrigin, err}
	}
	if console.IsFile(r) {
		return nil // a browser cannot show a token before the page has asked for one
	}
	need, known := needOf(r)
	if !known {
		return &rejection{connect.CodeUnimplemented, "the service has no such method", nil}
	}
	who.role = roleOperate
	switch {
	case g.tokens == nil && !g.certificates && need.named:
		return &rejection{connect.CodePermissionDenied, namelessOff, nil}
	case g.certificates && who.certificate == "":
		return &rejection{connect.CodeUnauthenticated, "a client certificate is required", nil}
	case g.certificates:
		if who.role = g.access.certificateRole(r.TLS.VerifiedChains[0][0]); who.role == "" {
			return &rejection{connect.CodePermissionDenied,
				"the client certificate has none of the names that may use this port", nil}
		}
	}
	if g.tokens != nil {
		token, ok := bearerToken(r)
		if !ok {
			return &rejection{connect.CodeUnauthenticated, tokenNeeded, nil}
		}
		name, role, err := g.tokens.Owner(token)
		switch {
		case err != nil:
			return &rejection{connect.CodeUnavailable, "the tokens cannot be read: the server's log has the details", err}
		case role == "":
			return &rejection{connect.CodeUnauthenticated, "the token is unknown", nil}
		case role != roleOperate:
			who.role = role
		}
		who.token = name
	}
	if !need.allows(who.role) {
		return &rejection{connect.CodePermissionDenied,
			"this needs the role operate, and the token or certificate has the role read", nil}
	}
	return nil
}

// report logs some of the rejections. The console learns from a rejection that it has to ask for a token: nobody has
// tried one.
func (g *gate) report(r *http.Request, who *actor, no *rejection) {
	if no.reason == tokenNeeded && r.URL.Path == eventsPath && r.Header.Get("Authorization") == "" ||
		!g.some.Pick(time.Now()) {
		return
	}
	attrs := append([]slog.Attr{slog.String("path", logging.Shorten(r.URL.Path)), slog.String("reason", no.reason)},
		who.attrs()...)
	if no.reason == nameUnknown {
		attrs = append(attrs, slog.String("host", logging.Shorten(r.Host)))
	}
	if no.err != nil {
		attrs = append(attrs, slog.String("error", no.err.Error()))
	}
	if n := g.some.Missed(); n > 0 {
		attrs = append(attrs, slog.Int64("not_logged", n))
	}
	g.log.LogAttrs(r.Context(), slog.LevelWarn, "operator denied", attrs...)
}

// write answers in the form that the client reads.
func (n *rejection) write(w http.ResponseWriter, r *http.Request) {
	code := http.StatusForbidden
	switch n.code {
	case connect.CodeUnauthenticated:
		code = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Bearer")
	case connect.CodeUnavailable:
		code = http.StatusServiceUnavailable
	}
	if isGRPC(r) || isService(r.URL.Path) {
		writeError(w, r, connect.NewError(n.code, errors.New(n.reason)))
		return
	}
	endpoint.WriteText(w, code, n.reason+"\n")
}

type actorKey struct{}

// actorOf is the actor behind a request.
func actorOf(ctx context.Context) actor {
	who, _ := ctx.Value(actorKey{}).(actor)
	return who
}

// connectionActor returns the operator's data from the connection: address and certificate.
func connectionActor(r *http.Request) actor {
	who := actor{from: r.RemoteAddr}
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

// know reports whether the host name of a request is allowed. IP addresses are always allowed. Over TLS the client has
// checked the name against the certificate.
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
