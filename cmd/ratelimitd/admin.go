package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/operator/bearer"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

// adminOptions define who may use the admin port, and its encryption.
type adminOptions struct {
	Token     string `name:"admin-token" env:"RATELIMITD_ADMIN_TOKEN" help:"An admin token with all rights. Prefer the file."`
	TokenFile string `name:"admin-token-file" env:"RATELIMITD_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"Admin tokens, one on each line: [NAME] [ROLE] TOKEN. Roles: read, and operate (the default)."`
	Cert      string `name:"admin-tls-cert" env:"RATELIMITD_ADMIN_TLS_CERT" placeholder:"FILE" help:"Certificate for TLS on the admin port."`
	Key       string `name:"admin-tls-key" env:"RATELIMITD_ADMIN_TLS_KEY" placeholder:"FILE" help:"Private key."`
	ClientCA  string `name:"admin-tls-client-ca" env:"RATELIMITD_ADMIN_TLS_CLIENT_CA" placeholder:"FILE" help:"Authorities for client certificates. With a token, clients need both."`

	HostNames []string `name:"debug-host-names" env:"RATELIMITD_DEBUG_HOST_NAMES" placeholder:"NAME" help:"More host names of the admin port. *.example.org: every name below that."`
	ClientSAN []string `name:"admin-tls-client-san" env:"RATELIMITD_ADMIN_TLS_CLIENT_SAN" placeholder:"[ROLE] NAME" help:"Names in client certificates (DNS, IP or URI), each with a role."`
}

// access sets up who may use the admin port.
func (s *starting) access(_ context.Context, opts *service.Options) (err error) {
	o, listen := &s.options.Admin, &s.options.Listen
	a := &opts.Operators.Access
	a.HostNames = o.HostNames
	if a.Names, err = operator.ParseCertificateNames(o.ClientSAN); err != nil {
		return fmt.Errorf("RATELIMITD_ADMIN_TLS_CLIENT_SAN: %w", err)
	}
	var names []string
	for _, n := range a.Names {
		names = append(names, n.Name)
	}
	if o.Token != "" || o.TokenFile != "" {
		tokens, err := bearer.New(bearer.Options{Token: o.Token, Name: "RATELIMITD_ADMIN_TOKEN", File: o.TokenFile})
		if err != nil {
			return fmt.Errorf("tokens of operators (RATELIMITD_ADMIN_TOKEN, RATELIMITD_ADMIN_TOKEN_FILE): %w", err)
		}
		a.Tokens = tokens
	}
	if a.Tokens == nil && o.ClientCA == "" && !isLoopback(listen.DebugHost) {
		s.log.Warn("anyone who can reach the admin port can read its pages and change the log level: set "+
			"RATELIMITD_ADMIN_TOKEN_FILE, or RATELIMITD_ADMIN_TLS_CLIENT_CA, or DEBUG_HOST=127.0.0.1",
			"debug_host", listen.DebugHost)
	}
	if o.Cert == "" && o.Key == "" {
		if o.ClientCA != "" || len(names) > 0 {
			return errors.New("RATELIMITD_ADMIN_TLS_CLIENT_CA and RATELIMITD_ADMIN_TLS_CLIENT_SAN need " +
				"RATELIMITD_ADMIN_TLS_CERT and RATELIMITD_ADMIN_TLS_KEY: client certificates need encrypted connections")
		}
		if a.Tokens != nil && !isLoopback(listen.DebugHost) {
			s.log.Warn("operators' tokens are sent in plain text to an address that is not loopback: set "+
				"RATELIMITD_ADMIN_TLS_CERT and RATELIMITD_ADMIN_TLS_KEY",
				"debug_host", listen.DebugHost)
		}
		return nil
	}
	variables := given("RATELIMITD_ADMIN_TLS_CERT", o.Cert, "RATELIMITD_ADMIN_TLS_KEY", o.Key,
		"RATELIMITD_ADMIN_TLS_CLIENT_CA", o.ClientCA, "RATELIMITD_ADMIN_TLS_CLIENT_SAN", strings.Join(names, ","))
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: "admin", Cert: o.Cert, Key: o.Key, CA: o.ClientCA, Clients: names, Log: s.log, Metrics: prom.With(s.registry),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	if a.TLS, err = files.Server(); err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	a.ClientCerts = o.ClientCA != ""
	s.tasks.Add(files.Run)
	return nil
}

// isLoopback reports whether only this machine can reach an address. A host name other than localhost may resolve to
// any address.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
