package redisconn

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// tlsFiles make the configuration of each new connection from files that may change. What they hold is compared rather
// than their times: a handshake costs far more than reading them, and no change is missed.
type tlsFiles struct {
	opts   TLSOptions
	prefix string // of the settings' names
	log    *slog.Logger

	mu      sync.Mutex
	used    [3][]byte // what is used of CACert, ClientCert and ClientKey
	roots   *x509.CertPool
	pair    *tls.Certificate
	trouble string // the last one that was logged
}

// openTLS reads the files for the first time.
func openTLS(o *Options) (*tlsFiles, error) {
	f := &tlsFiles{opts: o.TLS, prefix: o.prefix(), log: o.Logger}
	switch {
	case f.opts.ClientCert != "" && f.opts.ClientKey == "":
		return nil, o.wrong("TLS_CLIENT_CERT", "is set, but %sTLS_CLIENT_KEY is not: set both or none", o.prefix())
	case f.opts.ClientCert == "" && f.opts.ClientKey != "":
		return nil, o.wrong("TLS_CLIENT_KEY", "is set, but %sTLS_CLIENT_CERT is not: set both or none", o.prefix())
	}
	if _, err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// config is for a connection to a host as it is now. A server's certificate must be for that name.
func (f *tlsFiles) config(host string) *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, err := f.read()
	switch {
	case err != nil && f.trouble != err.Error():
		f.trouble = err.Error()
		f.log.Warn("a TLS file cannot be used: new connections to Redis use what it held before", "error", err)
	case err == nil && changed:
		f.log.Info("TLS files have changed: new connections to Redis use them")
	}
	if err == nil {
		f.trouble = ""
	}

	c := &tls.Config{ServerName: host, RootCAs: f.roots, MinVersion: tls.VersionTLS12}
	if f.pair != nil {
		c.Certificates = []tls.Certificate{*f.pair}
	}
	if f.opts.SkipHostnameVerification {
		// The standard library can only leave out all of the verification, so that this part of it is done here.
		c.InsecureSkipVerify = true
		c.VerifyConnection = signedBy(f.roots)
	}
	return c
}

// read takes over what has changed in the files. If any of it cannot be used, all stays as it was.
func (f *tlsFiles) read() (changed bool, err error) {
	var now [3][]byte
	for i, file := range []struct{ setting, path string }{
		{"TLS_CACERT", f.opts.CACert}, {"TLS_CLIENT_CERT", f.opts.ClientCert}, {"TLS_CLIENT_KEY", f.opts.ClientKey},
	} {
		if file.path == "" {
			continue
		}
		if now[i], err = os.ReadFile(file.path); err != nil {
			return false, fmt.Errorf("%s%s cannot be read: %w", f.prefix, file.setting, err)
		}
	}
	newRoots, newPair := !bytes.Equal(now[0], f.used[0]), !bytes.Equal(now[1], f.used[1]) || !bytes.Equal(now[2], f.used[2])
	roots, pair := f.roots, f.pair
	if f.opts.CACert != "" && (newRoots || roots == nil) {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(now[0]) {
			return false, fmt.Errorf("%sTLS_CACERT: %s holds no certificate in PEM", f.prefix, f.opts.CACert)
		}
	}
	if f.opts.ClientCert != "" && (newPair || pair == nil) {
		p, err := tls.X509KeyPair(now[1], now[2])
		if err != nil {
			return false, fmt.Errorf("%[1]sTLS_CLIENT_CERT and %[1]sTLS_CLIENT_KEY: %[2]w", f.prefix, err)
		}
		pair = &p
	}
	f.used, f.roots, f.pair = now, roots, pair
	return newRoots || newPair, nil
}

// signedBy verifies a server's certificate but for its name.
func signedBy(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the server has shown no certificate")
		}
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
		return err
	}
}
