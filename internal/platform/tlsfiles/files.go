package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options name the files and their use. All files are PEM.
type Options struct {
	Use string // use of the connections, in the log and as a label of metrics, such as "grpc"

	Cert, Key string // the certificate with its chain, and its key; optional for a client

	// CA is the authority that must have signed the peer's certificate. A server without a CA requests no certificate.
	// A client trusts the system's authorities, and the CA in addition.
	CA string

	// OnlyCA makes a client with a CA trust only that CA.
	OnlyCA bool

	// Name must be among the alternative names of the server's certificate: a DNS name, an IP address or a URI. By
	// default, the client expects the name that it dialled.
	Name string

	// Clients are names such as Name. A server rejects a client whose certificate is for none of them. By default, it
	// accepts every certificate of the CA.
	Clients []string

	// SkipName makes a client ignore the name: it checks only that the authority signed the certificate.
	SkipName bool

	Rescan  time.Duration   // interval at which the files are read even without a reported change; default 10 s
	Log     *slog.Logger    // default slog.Default()
	Metrics metric.Registry // nil does not register the metrics
}

// Files are the files of one use, with their last good version.
type Files struct {
	o Options

	current atomic.Pointer[version]

	mu      sync.Mutex // held while the files are read again
	tried   contents   // the newest contents, good or not
	failing string     // error of the last attempt to read the files; empty if it succeeded

	failures atomic.Uint64 // failed reloads of changed files
}

// version is the content of the files at one time.
type version struct {
	cert *tls.Certificate // nil without a certificate
	pool *x509.CertPool   // only the CA; nil without one
	read contents         // the contents that it was created from
}

// FileError is a file that cannot be used.
type FileError struct {
	Field string // field of Options: Cert, Key or CA; Cert if the certificate and the key do not belong together
	Err   error  // names the path
}

func (e *FileError) Error() string { return e.Err.Error() }

func (e *FileError) Unwrap() error { return e.Err }

// contents are the bytes of the files.
type contents struct{ cert, key, ca []byte }

func (c *contents) equal(other *contents) bool {
	return bytes.Equal(c.cert, other.cert) && bytes.Equal(c.key, other.key) && bytes.Equal(c.ca, other.ca)
}

// Load reads the files for the first time. It fails if one of them cannot be used.
func Load(o Options) (*Files, error) {
	if o.Rescan <= 0 {
		o.Rescan = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = o.Log.With("use", o.Use)
	switch {
	case o.Cert != "" && o.Key == "":
		return nil, fmt.Errorf("load TLS files of %s: the certificate %s needs its key: name both files, or neither", o.Use,
			o.Cert)
	case o.Cert == "" && o.Key != "":
		return nil, fmt.Errorf("load TLS files of %s: the key %s needs its certificate: name both files, or neither", o.Use,
			o.Key)
	}
	f := &Files{o: o}
	c, err := f.read()
	if err == nil {
		err = f.swap(c)
	}
	if err != nil {
		return nil, fmt.Errorf("load TLS files of %s: %w", o.Use, err)
	}
	f.tried = c
	f.register()
	return f, nil
}

func (f *Files) register() {
	use := map[string]string{"use": f.o.Use}
	failures := metric.Counter("ratelimitd_tls_reload_failures_total", "Failed reloads of changed certificate files.",
		f.failures.Load)
	failures.Fixed = use
	metric.Register(f.o.Metrics, failures)
	if f.o.Cert == "" {
		return
	}
	expiry := metric.Gauge("ratelimitd_tls_certificate_expiry_timestamp_seconds",
		"When the certificate in use expires, Unix time.",
		func() int64 { return f.current.Load().cert.Leaf.NotAfter.Unix() })
	expiry.Fixed = use
	metric.Register(f.o.Metrics, expiry)
}

func (f *Files) read() (contents, error) {
	var c contents
	for _, file := range []struct {
		field, path string
		to          *[]byte
	}{{"Cert", f.o.Cert, &c.cert}, {"Key", f.o.Key, &c.key}, {"CA", f.o.CA, &c.ca}} {
		if file.path == "" {
			continue
		}
		var err error
		if *file.to, err = files.Read(file.path, maxFile); err != nil {
			return c, &FileError{file.field, err}
		}
	}
	return c, nil
}

// maxFile is the largest certificate file: the authorities of a system have 300 KB.
const maxFile = 16 << 20

// swap uses new contents if they are good. Errors name files, never their content.
func (f *Files) swap(c contents) error {
	v := &version{read: c}
	if f.o.Cert != "" {
		pair, err := tls.X509KeyPair(c.cert, c.key)
		if err != nil {
			return &FileError{"Cert", fmt.Errorf("certificate %s and key %s: %w", f.o.Cert, f.o.Key, err)}
		}
		if now := time.Now(); now.After(pair.Leaf.NotAfter) {
			f.o.Log.Warn("the TLS certificate has expired", "certificate", f.o.Cert, "since", pair.Leaf.NotAfter)
		}
		v.cert = &pair
	}
	if f.o.CA != "" {
		v.pool = x509.NewCertPool()
		if !v.pool.AppendCertsFromPEM(c.ca) {
			return &FileError{"CA", fmt.Errorf("CA %s: no certificate in it", f.o.CA)}
		}
	}
	f.current.Store(v)
	return nil
}

// Reload reads the files again. It logs a change, and an unusable version, once. Run calls it. A client with few
// connections may call it before each of them instead, because reading three files costs far less than a handshake.
func (f *Files) Reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.read()
	if err != nil {
		if err.Error() != f.failing {
			f.failing = err.Error()
			f.failed(err)
		}
		return
	}
	f.failing = ""
	if c.equal(&f.tried) {
		return
	}
	f.tried = c
	was := f.current.Load().read // not f.tried: an attempt since may have failed
	if err := f.swap(c); err != nil {
		f.failed(err)
		return
	}
	about := []any{"changed", f.changed(&was, &c)}
	if cert := f.current.Load().cert; cert != nil && !bytes.Equal(was.cert, c.cert) {
		about = append(about, "subject", cert.Leaf.Subject.String(), "until", cert.Leaf.NotAfter)
	}
	f.o.Log.Info("TLS files were read again", about...)
}

// changed returns the paths of the files whose contents differ.
func (f *Files) changed(was, is *contents) (paths []string) {
	for _, file := range []struct {
		path    string
		was, is []byte
	}{{f.o.Cert, was.cert, is.cert}, {f.o.Key, was.key, is.key}, {f.o.CA, was.ca, is.ca}} {
		if !bytes.Equal(file.was, file.is) {
			paths = append(paths, file.path)
		}
	}
	return paths
}

func (f *Files) failed(err error) {
	f.failures.Add(1)
	f.o.Log.Error("changed TLS files cannot be used; the earlier version stays in use", "error", err)
}
