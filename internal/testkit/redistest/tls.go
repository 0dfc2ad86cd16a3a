package redistest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// TLS are the certificates that servers show and demand, as paths of PEM files.
type TLS struct {
	CA          string // signs the certificates of clients, and of the other servers of a topology
	Cert, Key   string
	ClientCerts bool // clients must show a certificate too
}

func (c *TLS) config(port string) [][2]string {
	clients := "no"
	if c.ClientCerts {
		clients = "yes"
	}
	return [][2]string{
		{"port", "0"},
		{"tls-port", port},
		{"tls-ca-cert-file", c.CA},
		{"tls-cert-file", c.Cert},
		{"tls-key-file", c.Key},
		{"tls-auth-clients", clients},
		{"tls-replication", "yes"}, // sentinels read it too, for all their connections
	}
}

// CA signs certificates and writes them to files, which are gone after the test.
type CA struct {
	File string // certificate of the authority, in PEM

	dir       string
	authority *tlstest.Authority
}

// Pair is a certificate and its key, as PEM files.
type Pair struct{ Cert, Key string }

// NewCA makes a new authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	dir := t.TempDir()
	// a distinct name, so that two authorities are not confused
	ca := &CA{File: filepath.Join(dir, "ca.pem"), dir: dir, authority: tlstest.NewAuthority(t, "authority in "+dir)}
	Replace(t, ca.File, ca.authority.PEM)
	return ca
}

// Issue signs a certificate, good for servers and clients, for names and IP addresses. The first one names its files.
func (ca *CA) Issue(t testing.TB, hosts ...string) Pair {
	t.Helper()
	p := Pair{Cert: filepath.Join(ca.dir, hosts[0]+".pem"), Key: filepath.Join(ca.dir, hosts[0]+".key")}
	ca.Reissue(t, p, hosts...)
	return p
}

// Reissue replaces a certificate and its key with new ones, the certificate first.
func (ca *CA) Reissue(t testing.TB, p Pair, hosts ...string) {
	t.Helper()
	pair := ca.authority.Issue(t, hosts...)
	Replace(t, p.Cert, pair.Cert)
	Replace(t, p.Key, pair.Key)
}

// Server returns the settings of a server with a pair that this authority has signed.
func (ca *CA) Server(p Pair, clientCerts bool) *TLS {
	return &TLS{CA: ca.File, Cert: p.Cert, Key: p.Key, ClientCerts: clientCerts}
}

// Replace writes a file atomically, as secrets on a mounted volume are replaced.
func Replace(t testing.TB, path string, content []byte) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}
