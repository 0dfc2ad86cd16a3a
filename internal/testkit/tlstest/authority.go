package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	PEM []byte // certificate of the authority

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes an authority that no client or server trusts yet.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	a.cert = &x509.Certificate{
		SerialNumber:          serial(t),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Pool holds only this authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM)
	return pool
}

// Issue signs a certificate for both sides of a connection. The names are DNS names, IP addresses or URIs; the first is
// its subject too.
func (a *Authority) Issue(t testing.TB, names ...string) Pair {
	t.Helper()
	return a.IssueUntil(t, time.Now().Add(time.Hour), names...)
}

// onlySubject is the prefix of a first name that is in the certificate's subject but not an alternative name, as in old
// certificates.
const onlySubject = "CN="

// IssueUntil issues a certificate that expires at end.
func (a *Authority) IssueUntil(t testing.TB, end time.Time, names ...string) Pair {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t),
		Subject:      pkix.Name{CommonName: strings.TrimPrefix(names[0], onlySubject)},
		NotBefore:    end.Add(-2 * time.Hour),
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		switch ip := net.ParseIP(name); {
		case strings.HasPrefix(name, onlySubject):
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.Contains(name, "://"):
			uri, err := url.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			template.URIs = append(template.URIs, uri)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

// TLS is the pair as crypto/tls wants it.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
