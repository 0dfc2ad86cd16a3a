package regionrpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

// RegionOf returns the region in a certificate's URI spiffe://TRUST-DOMAIN/region/NAME. Any trust domain will do,
// because trust depends on the authority that signed the certificate.
func RegionOf(cert *x509.Certificate) (string, error) {
	var names []string
	for _, uri := range cert.URIs {
		name, is := strings.CutPrefix(uri.Path, "/region/")
		if uri.Scheme == "spiffe" && is && descriptor.ValidRegion(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	switch len(names) {
	case 0:
		return "",
			fmt.Errorf("the certificate names no region: it needs the URI spiffe://TRUST-DOMAIN/region/NAME among its "+
				"alternative names, and has the URIs %v", cert.URIs)
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("the certificate names several regions, %s: it needs exactly one", strings.Join(names, " and "))
	}
}

// OwnRegion returns the region of the certificate in files.
func OwnRegion(files *tlsfiles.Files) (string, error) {
	certs := files.Client().Certificates
	if len(certs) == 0 {
		return "", errors.New("there is no certificate")
	}
	return RegionOf(certs[0].Leaf)
}

// toRegion makes connections to one region. Each handshake uses the current files, and fails unless the server's
// certificate is of that region.
type toRegion struct {
	files  *tlsfiles.Files
	region string
}

func (t toRegion) ClientHandshake(ctx context.Context, authority string,
	conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := t.files.Client()
	chained := config.VerifyConnection
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if err := chained(s); err != nil {
			return err
		}
		name, err := RegionOf(s.PeerCertificates[0])
		if err == nil && name != t.region {
			err = fmt.Errorf("the certificate is of region %s: the address of region %s leads to a wrong place", name, t.region)
		}
		if err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates, Err: err}
		}
		return nil
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (t toRegion) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("this side only dials")
}

func (t toRegion) Info() credentials.ProtocolInfo { return credentials.NewTLS(nil).Info() }

func (t toRegion) Clone() credentials.TransportCredentials { return t }

// OverrideServerName does nothing: the certificate names a region, not a server.
func (t toRegion) OverrideServerName(string) error { return nil }
