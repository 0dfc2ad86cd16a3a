package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// CA signs certificates. Its files are gone after the test.
type CA struct {
	File string // its own certificate, in PEM

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM files.
type Pair struct{ Cert, Key string }

// NewCA makes an authority of its own.
func NewCA(t testing.TB) *CA {
	t.Helper()
	dir := t.TempDir()
	ca := &CA{File: filepath.Join(dir, "ca.pem"), dir: dir, key: newKey(t)}
	serial := newSerial(t)
	ca.cert = &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "authority " + serial.String()}, // so that two authorities are not confused
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca.cert, ca.cert, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	Replace(t, ca.File, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
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
	key := newKey(t)
	leaf := &x509.Certificate{
		SerialNumber: newSerial(t),
		Subject:      pkix.Name{CommonName: hosts[0]},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	Replace(t, p.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	Replace(t, p.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
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

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newSerial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
