package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
)

// Server is the configuration of the side that is dialled. Each connection gets the certificate and the CA of its time.
func (f *Files) Server() (*tls.Config, error) {
	if f.o.Cert == "" {
		return nil, fmt.Errorf("serve TLS for %s: a server needs a certificate and its key", f.o.Use)
	}
	if f.o.Name != "" && f.o.CA == "" {
		return nil, fmt.Errorf("serve TLS for %s: the name %q in a client's certificate means nothing without a CA that signed it", f.o.Use, f.o.Name)
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
	c.SessionTicketsDisabled = true // a ticket would outlive the CA that let its owner in
	if f.o.Name != "" {
		c.VerifyConnection = func(s tls.ConnectionState) error { return named(s.PeerCertificates[0], f.o.Name) }
	}
	return c
}

// Client is the configuration of the side that dials, for a connection that is made now: ask again for each. It shows
// the certificate, if there is one, and trusts the CA and, unless Options.OnlyCA is set, whom the system trusts.
func (f *Files) Client() *tls.Config {
	v := f.current.Load()
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.o.Name}
	byURI := strings.Contains(f.o.Name, "://")
	if byURI {
		c.ServerName = "" // it is no host: what is dialled is asked for
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
			roots = x509.NewCertPool() // a machine without any is no reason not to trust the CA
		}
		roots.AppendCertsFromPEM(v.ca)
		c.RootCAs = roots
	}
	if f.o.SkipName || byURI {
		// crypto/tls cannot check the chain alone, and knows no names but those of hosts.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if err := chained(s.PeerCertificates, c.RootCAs); err != nil || f.o.SkipName {
				return err
			}
			return named(s.PeerCertificates[0], f.o.Name)
		}
	}
	return c
}

// DialContext dials TCP or a unix socket and shakes hands, with the files of now.
func (f *Files) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&tls.Dialer{Config: f.Client()}).DialContext(ctx, network, address)
}

// chained says whether a server's certificate was signed by one of the roots, whatever name it is for.
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

// named says whether a certificate is for a name. A URI must be equal; the rules for hosts are those of HTTPS.
func named(leaf *x509.Certificate, name string) error {
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
