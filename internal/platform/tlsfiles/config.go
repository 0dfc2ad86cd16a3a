package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
)

// Server returns the configuration of a server. Each new connection uses the current certificate and CA.
func (f *Files) Server() (*tls.Config, error) {
	if f.o.Cert == "" {
		return nil, fmt.Errorf("serve TLS for %s: a server needs a certificate and a key", f.o.Use)
	}
	if len(f.o.Clients) > 0 && f.o.CA == "" {
		return nil, fmt.Errorf("serve TLS for %s: names for client certificates (%q) need a CA that signs them", f.o.Use,
			f.o.Clients)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.server(), nil },
	}, nil
}

func (f *Files) server() *tls.Config {
	v := f.current.Load()
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*v.cert}}
	if v.pool == nil {
		return c
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.ClientCAs = v.pool
	c.SessionTicketsDisabled = true // a ticket would let a client reconnect after its CA was removed
	if len(f.o.Clients) > 0 {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if err := oneOf(s.PeerCertificates[0], f.o.Clients); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
			}
			return nil
		}
	}
	return c
}

// Client returns the configuration of a client for one connection; call it again for each. It presents the certificate,
// if there is one, and trusts the CA and, unless Options.OnlyCA is set, the system's authorities.
func (f *Files) Client() *tls.Config {
	v := f.current.Load()
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.o.Name}
	byURI := strings.Contains(f.o.Name, "://")
	if byURI {
		c.ServerName = "" // a URI is not a host name: use the dialled one
	}
	if v.cert != nil {
		c.Certificates = []tls.Certificate{*v.cert}
	}
	switch {
	case v.pool == nil:
	case f.o.OnlyCA:
		c.RootCAs = v.pool
	default:
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool() // a machine without authorities can still trust the CA
		}
		roots.AppendCertsFromPEM(v.read.ca)
		c.RootCAs = roots
	}
	if f.o.SkipName || byURI {
		// crypto/tls cannot check the chain without the name, and compares only host names.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if err := chained(s.PeerCertificates, c.RootCAs); err != nil || f.o.SkipName {
				return err
			}
			return Named(s.PeerCertificates[0], f.o.Name)
		}
	}
	return c
}

// DialContext dials TCP or a unix socket and completes the TLS handshake with the current files.
func (f *Files) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&tls.Dialer{Config: f.Client()}).DialContext(ctx, network, address)
}

// chained checks that a certificate was signed by one of the roots. It does not check the name.
func chained(shown []*x509.Certificate, roots *x509.CertPool) error {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, c := range shown[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := shown[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: shown, Err: err}
	}
	return nil
}

// oneOf checks that a certificate is for at least one of the names.
func oneOf(leaf *x509.Certificate, names []string) (err error) {
	for _, name := range names {
		if err = Named(leaf, name); err == nil {
			return nil
		}
	}
	if len(names) > 1 {
		err = fmt.Errorf("none of the names %s: %w", strings.Join(names, ", "), err)
	}
	return err
}

// Named checks that a certificate is for a name. A URI must be equal; host names and IP addresses follow the rules of
// HTTPS.
func Named(leaf *x509.Certificate, name string) error {
	if !strings.Contains(name, "://") {
		return leaf.VerifyHostname(name)
	}
	for _, uri := range leaf.URIs {
		if uri.String() == name {
			return nil
		}
	}
	return fmt.Errorf("the certificate is for the URIs %v, not %s", leaf.URIs, name)
}
