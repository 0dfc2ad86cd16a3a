package redisconn

import (
	"crypto/tls"
	"errors"

	"github.com/ratelimitd/ratelimitd/internal/tlsfiles"
)

// TLSOptions make connections encrypted, to sentinels too. The files are PEM. They are read for each new connection, so
// that certificates can rotate: while a changed file cannot be used, its last good version is.
type TLSOptions struct {
	Enabled    bool   // a URL with the scheme rediss enables it too
	CACert     string // path of the authorities that may sign servers' certificates. Default: those of the system
	ClientCert string // path of the certificate to show to servers. Default: none
	ClientKey  string // path of its key
	// SkipHostnameVerification accepts a certificate that was issued for another name. Its authority is still verified.
	SkipHostnameVerification bool
}

// tlsSettings are the settings of the files, by the field of tlsfiles.Options.
var tlsSettings = map[string]string{"CA": "TLS_CACERT", "Cert": "TLS_CLIENT_CERT", "Key": "TLS_CLIENT_KEY"}

// openTLS reads the files for the first time.
func openTLS(o *Options) (*tlsfiles.Files, error) {
	switch {
	case o.TLS.ClientCert != "" && o.TLS.ClientKey == "":
		return nil, o.wrong("TLS_CLIENT_CERT", "is set, but %s is not: set both or none", o.setting("TLS_CLIENT_KEY"))
	case o.TLS.ClientCert == "" && o.TLS.ClientKey != "":
		return nil, o.wrong("TLS_CLIENT_KEY", "is set, but %s is not: set both or none", o.setting("TLS_CLIENT_CERT"))
	}
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: o.Settings, Cert: o.TLS.ClientCert, Key: o.TLS.ClientKey, CA: o.TLS.CACert, OnlyCA: true,
		SkipName: o.TLS.SkipHostnameVerification, Log: o.Logger,
	})
	if file, ok := errors.AsType[*tlsfiles.FileError](err); ok {
		return nil, o.wrong(tlsSettings[file.Field], "cannot be used: %w", file)
	}
	return files, err
}

// tlsConfig returns the configuration for one new connection to a host. The server's certificate must be for that name.
func tlsConfig(files *tlsfiles.Files, host string) *tls.Config {
	files.Reload()
	c := files.Client()
	c.ServerName = host
	return c
}
