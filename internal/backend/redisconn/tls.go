package redisconn

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

// TLSOptions make connections encrypted, to sentinels too. The files are PEM. They are read for each new connection, so
// that certificates can rotate: while a changed file cannot be used, its last good version is.
type TLSOptions struct {
	Enabled    bool   // a URL with the scheme rediss enables it too
	CACert     string // path of the authorities that may sign servers' certificates. Default: the system's
	ClientCert string // path of the certificate to show to servers. Default: none
	ClientKey  string // path of its key
	// SkipHostnameVerification accepts a certificate that was issued for another name. Its authority is still verified.
	SkipHostnameVerification bool
}

// tlsSettings are the settings of the files, by the field of tlsfiles.Options. There is one set for all Redis.
var tlsSettings = map[string]string{"CA": "REDIS_TLS_CACERT", "Cert": "REDIS_TLS_CLIENT_CERT",
	"Key": "REDIS_TLS_CLIENT_KEY"}

// openTLS reads the files for the first time.
func openTLS(o *Options) (*tlsfiles.Files, error) {
	switch {
	case o.TLS.ClientCert != "" && o.TLS.ClientKey == "":
		return nil, &SettingError{tlsSettings["Cert"], fmt.Errorf("is set, but %s is not: set both or none",
			tlsSettings["Key"])}
	case o.TLS.ClientCert == "" && o.TLS.ClientKey != "":
		return nil, &SettingError{tlsSettings["Key"], fmt.Errorf("is set, but %s is not: set both or none",
			tlsSettings["Cert"])}
	}
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: o.Settings, Cert: o.TLS.ClientCert, Key: o.TLS.ClientKey, CA: o.TLS.CACert, OnlyCA: true,
		SkipName: o.TLS.SkipHostnameVerification, Log: o.Logger,
	})
	if file, ok := errors.AsType[*tlsfiles.FileError](err); ok {
		return nil, &SettingError{tlsSettings[file.Field], fmt.Errorf("cannot be used: %w", file)}
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
