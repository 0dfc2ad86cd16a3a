package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Tokens knows whose a bearer token is. It is asked by any goroutine.
type Tokens interface {
	// Owner is the name of the token's owner, if it is known. The error says why that cannot be told.
	Owner(token string) (name string, known bool, err error)
}

// operators says who may do what needs permission.
type operators struct {
	tokens       Tokens
	certificates bool // of every client of the listener
	log          *slog.Logger
	some         sampler // of the refused
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
	tokenNeeded = "a token is needed: send it in the metadata, as authorization: Bearer TOKEN"
)

// admit says who calls a method, or why they may not.
func (o *operators) admit(ctx context.Context, method string) (operator, error) {
	who := caller(ctx)
	code, reason, err := o.check(ctx, &who)
	if code == codes.OK {
		return who, nil
	}
	if o.some.pick(time.Now()) {
		attrs := append([]slog.Attr{slog.String("method", method), slog.String("reason", reason)}, who.attrs()...)
		if err != nil {
			attrs = append(attrs, slog.String("error", err.Error()))
		}
		if n := o.some.missed(); n > 0 {
			attrs = append(attrs, slog.Int64("not_logged", n))
		}
		o.log.LogAttrs(ctx, slog.LevelWarn, "operator refused", attrs...)
	}
	return who, status.Error(code, reason)
}

// check fills in whose token it is. It returns the reason why somebody is not let in, and what the log alone is told. A
// connection without a verified certificate does not get here where those are asked for; it is looked for all the same.
func (o *operators) check(ctx context.Context, who *operator) (code codes.Code, reason string, err error) {
	switch {
	case o.tokens == nil && !o.certificates:
		return codes.PermissionDenied, counterCallsOff, nil
	case o.certificates && who.certificate == "":
		return codes.Unauthenticated, "a client certificate is needed", nil
	case o.tokens == nil:
		return codes.OK, "", nil
	}
	token, ok := bearer(ctx)
	if !ok {
		return codes.Unauthenticated, tokenNeeded, nil
	}
	name, known, err := o.tokens.Owner(token)
	switch {
	case err != nil:
		return codes.Unavailable, "the tokens cannot be read: the server's log has the details", err
	case !known:
		return codes.Unauthenticated, "the token is not known", nil
	}
	who.token = name
	return codes.OK, "", nil
}

// caller is what the connection tells.
func caller(ctx context.Context) operator {
	var who operator
	p, ok := peer.FromContext(ctx)
	if !ok {
		return who
	}
	who.from = p.Addr.String()
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		leaf := info.State.VerifiedChains[0][0]
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

// bearer is the token that came with a call, if there is exactly one.
func bearer(ctx context.Context) (string, bool) {
	sent := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(sent) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}
