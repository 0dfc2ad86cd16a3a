package xds

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// encrypted is a server like Envoy Gateway's: TLS 1.3, and clients need a certificate of the authority.
func encrypted(t *testing.T, ca *tlstest.Authority, names ...string) *control {
	t.Helper()
	return newControl(t, "", grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{ca.Issue(t, names...).TLS(t)},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca.Pool(),
	})))
}

func volume(t *testing.T, ca *tlstest.Authority, pair tlstest.Pair) map[string][]byte {
	t.Helper()
	return map[string][]byte{"ca.crt": ca.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key}
}

func TestTLS(t *testing.T) {
	ours, other := tlstest.NewAuthority(t, "ours"), tlstest.NewAuthority(t, "other")
	const spiffe = "spiffe://cluster/ns/envoy-gateway-system/sa/envoy-gateway"
	v := tlstest.NewVolume(t, volume(t, ours, ours.Issue(t, "envoy-ratelimit")))
	wrong := tlstest.NewVolume(t, volume(t, ours, other.Issue(t, "envoy-ratelimit")))
	for name, c := range map[string]struct {
		server   []string // names in its certificate
		files    tlsfiles.Options
		rejected string // expected in the log; empty if rules arrive
	}{
		"the host":                   {[]string{"127.0.0.1"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt")}, ""},
		"another host":               {[]string{"envoy-gateway"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt")}, "127.0.0.1"},
		"a configured name":          {[]string{"envoy-gateway"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt"), Name: "envoy-gateway"}, ""},
		"not the configured name":    {[]string{"127.0.0.1"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt"), Name: "envoy-gateway"}, "wanted to match envoy-gateway"},
		"a configured URI":           {[]string{spiffe}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt"), Name: spiffe}, ""},
		"not the configured URI":     {[]string{spiffe + "2"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt"), Name: spiffe}, "not " + spiffe},
		"a URI of another authority": {[]string{spiffe}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), Name: spiffe}, "unknown authority"},
		"an authority nobody trusts": {[]string{"127.0.0.1"}, tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key")}, "unknown authority"},
		"no certificate of ours":     {[]string{"127.0.0.1"}, tlsfiles.Options{CA: v.Path("ca.crt")}, "cannot connect"},
		// depending on timing, the log has more details than this
		"a certificate of another one": {[]string{"127.0.0.1"}, tlsfiles.Options{Cert: wrong.Path("tls.crt"), Key: wrong.Path("tls.key"), CA: v.Path("ca.crt")}, "cannot connect"},
	} {
		t.Run(name, func(t *testing.T) {
			server := encrypted(t, ours, c.server...)
			server.set("1", perDay("one", "a", "k", 5))
			c.files.Log = discard
			files, err := tlsfiles.Load(c.files)
			if err != nil {
				t.Fatal(err)
			}
			o := impatient(server.addr)
			o.TLS = files.Client
			client := run(t, o)
			if c.rejected == "" {
				client.inForce("a.k 5/day")
				return
			}
			await(t, c.rejected, func() bool { return strings.Contains(client.log.String(), c.rejected) })
			if client.tree() != nil || len(server.seen()) > 0 {
				t.Error("rules came all the same")
			}
		})
	}
}

// A renewed certificate is used from the next connection on.
func TestCertificatesAreRenewed(t *testing.T) {
	before, after := tlstest.NewAuthority(t, "before"), tlstest.NewAuthority(t, "after")
	v := tlstest.NewVolume(t, volume(t, before, before.Issue(t, "envoy-ratelimit")))
	files, err := tlsfiles.Load(tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), CA: v.Path("ca.crt"), Rescan: 20 * time.Millisecond, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watching := make(chan error, 1)
	go func() { watching <- files.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-watching; err != nil {
			t.Error(err)
		}
	}()
	server := encrypted(t, after, "127.0.0.1")
	server.set("1", perDay("one", "a", "k", 5))
	o := impatient(server.addr)
	o.TLS = files.Client
	c := run(t, o)
	await(t, "the old files to fail", func() bool { return strings.Contains(c.log.String(), "unknown authority") })
	v.Swap(t, volume(t, after, after.Issue(t, "envoy-ratelimit")))
	c.inForce("a.k 5/day")
}
