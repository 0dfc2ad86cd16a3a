package server

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// secured is a server with TLS from a volume, as Kubernetes mounts one.
type secured struct {
	*running
	volume *tlstest.Volume
	log    *servicetest.Log
}

func startTLS(t *testing.T, content map[string][]byte, o tlsfiles.Options) *secured {
	t.Helper()
	return startTLSOn(t, content, o, endpoint.Options{})
}

func startTLSOn(t *testing.T, content map[string][]byte, o tlsfiles.Options, shared endpoint.Options) *secured {
	t.Helper()
	s := &secured{volume: tlstest.NewVolume(t, content), log: new(servicetest.Log)}
	o.Cert, o.Key = s.volume.Path("tls.crt"), s.volume.Path("tls.key")
	if content["ca.crt"] != nil {
		o.CA = s.volume.Path("ca.crt")
	}
	o.Log = slog.New(slog.NewTextHandler(s.log, nil))
	files, err := tlsfiles.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	config, err := files.Server()
	if err != nil {
		t.Fatal(err)
	}
	servicetest.Serve(t, files.Run)
	s.running = startWith(t, shared, Options{Listen: Listen{Credentials: credentials.NewTLS(config)}})
	return s
}

// logged waits until the log contains a text the given number of times.
func (s *secured) logged(t *testing.T, text string, times int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for strings.Count(s.log.String(), text) < times {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q %d times:\n%s", text, times, s.log)
		}
		<-time.After(time.Millisecond)
	}
}

// ask makes one call on a new connection and returns the names in the server's certificate.
func (s *secured) ask(t *testing.T, config *tls.Config) ([]string, error) {
	t.Helper()
	conn := dial(t, s.GRPCAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	defer conn.Close()
	return callOver(t, conn)
}

func callOver(t *testing.T, conn *grpc.ClientConn) ([]string, error) {
	t.Helper()
	var p peer.Peer
	_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(within(t), smallRequest(), grpc.Peer(&p))
	if err != nil {
		return nil, err
	}
	return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].DNSNames, nil
}

func TestCertificatesAreReloaded(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	content := func(name string) map[string][]byte {
		pair := ca.Issue(t, name, "rl.test")
		return map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}
	}
	s := startTLS(t, content("first"), tlsfiles.Options{Rescan: time.Hour})
	config := &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test"}
	expect := func(conn *grpc.ClientConn, want string) {
		t.Helper()
		var names []string
		var err error
		if conn != nil {
			names, err = callOver(t, conn)
		} else {
			names, err = s.ask(t, config)
		}
		if err != nil || names[0] != want {
			t.Errorf("got the certificate of %v, %v; want %s's", names, err, want)
		}
	}
	open := dial(t, s.GRPCAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithAuthority("rl.test"))
	expect(open, "first")

	s.volume.Swap(t, content("second"))
	s.logged(t, "read again", 1)
	expect(nil, "second")
	expect(open, "first") // an open connection stays

	bad := content("third")
	bad["tls.key"] = content("other")["tls.key"]
	s.volume.Swap(t, bad)
	s.logged(t, "cannot be used", 1)
	expect(nil, "second")

	s.volume.Swap(t, content("fourth"))
	s.logged(t, "read again", 2)
	expect(nil, "fourth")
	_ = open.Close()
}

func TestMutualTLS(t *testing.T) {
	ca, stranger := tlstest.NewAuthority(t, "ca"), tlstest.NewAuthority(t, "stranger")
	pair := ca.Issue(t, "rl.test")
	content := map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.PEM}
	s := startTLS(t, content, tlsfiles.Options{Clients: []string{"envoy.test"}, Rescan: time.Hour})
	for _, tt := range []struct {
		name  string
		certs []tls.Certificate
		ok    bool
		said  string // text in the log; empty if nothing is logged
	}{
		{"no certificate", nil, false, ""},
		{"another CA's", []tls.Certificate{stranger.Issue(t, "envoy.test").TLS(t)}, false, "signed by unknown authority"},
		{"another name", []tls.Certificate{ca.Issue(t, "prometheus.test").TLS(t)}, false, "not envoy.test"},
		{"an expired one", []tls.Certificate{ca.IssueUntil(t, time.Now().Add(-time.Hour), "envoy.test").TLS(t)}, false, "has expired"},
		{"the right one", []tls.Certificate{ca.Issue(t, "envoy.test").TLS(t)}, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, registry := s, prometheus.NewRegistry()
			if tt.said != "" { // a separate log: there is at most one line a second
				s = startTLSOn(t, content, tlsfiles.Options{Clients: []string{"envoy.test"}, Rescan: time.Hour}, endpoint.Options{Metrics: registry})
			}
			show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // even one that the server does not ask for
				return &append(tt.certs, tls.Certificate{})[0], nil
			}
			_, err := s.ask(t, &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", GetClientCertificate: show})
			if tt.said != "" {
				(&secured{log: s.running.log}).logged(t, tt.said, 1)
				// the client may try again
				if n := gathered(t, registry)["ratelimitd_tls_client_certificates_rejected_total"]; n == 0 {
					t.Error("the metric does not count it")
				}
			}
			if tt.ok && err != nil || !tt.ok && status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
		})
	}
	content["ca.crt"] = stranger.PEM
	s.volume.Swap(t, content)
	s.logged(t, "read again", 1)
	if said := s.log.String(); !strings.Contains(said, "ca.crt]") || strings.Contains(said, "subject=") {
		t.Errorf("only the CA was changed; the log says\n%s", said)
	}
	for authority, ok := range map[*tlstest.Authority]bool{ca: false, stranger: true} {
		_, err := s.ask(t, &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", Certificates: []tls.Certificate{authority.Issue(t, "envoy.test").TLS(t)}})
		if (err == nil) != ok {
			t.Errorf("after the CA was changed, the old one's: %v, got %v", !ok, err)
		}
	}
}

func TestPlainTextIsNotTakenForTLS(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	pair := ca.Issue(t, "rl.test")
	s := startTLS(t, map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}, tlsfiles.Options{})
	if _, err := s.rateLimit().ShouldRateLimit(within(t), smallRequest()); status.Code(err) != codes.Unavailable {
		t.Errorf("plain text: %v", err)
	}
	conn, err := net.Dial("tcp", s.GRPCAddr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	secure := tls.Client(conn, &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
	if err := secure.Handshake(); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	conn, err = tls.Dial("tcp", s.GRPCAddr.String(), &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "h2" {
		t.Errorf("the protocol is %q", got)
	}
}

// recorded is a connection that keeps the first bytes from a client.
type recorded struct {
	net.Conn
	first []byte
}

func (r *recorded) Write(p []byte) (int, error) {
	r.first = append(r.first, p...)
	return 0, net.ErrClosed
}

// Clients that start handshakes and send nothing more make room for others, even for clients at the same address.
func TestUnfinishedHandshakes(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	pair := ca.Issue(t, "rl.test")
	registry := prometheus.NewRegistry()
	s := startTLSOn(t, map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}, tlsfiles.Options{Rescan: time.Hour}, endpoint.Options{Metrics: registry})
	config := &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test"}
	early := dial(t, s.GRPCAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	from := func() net.Addr {
		t.Helper()
		var p peer.Peer
		if _, err := ratelimitv3.NewRateLimitServiceClient(early).ShouldRateLimit(within(t), smallRequest(), grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		return p.LocalAddr
	}
	first := from()
	var r recorded
	_ = tls.Client(&r, config).Handshake()
	const silent, most = 700, 256 // most is the bound for one address
	for range silent {
		c, err := net.Dial("tcp", s.GRPCAddr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = c.Write(r.first) // it may already have been replaced
	}
	for range 20 {
		if _, err := s.ask(t, config); err != nil {
			t.Errorf("a new client: %v", err)
		}
	}
	if now := from(); now.String() != first.String() {
		t.Errorf("an earlier client had to connect again: from %v, now from %v", first, now)
	}
	metrics := gathered(t, registry)
	if n := metrics[`ratelimitd_connections{listener=grpc}`]; n > most+30 {
		t.Errorf("%v connections are open, want about %d", n, most)
	}
	if metrics[`ratelimitd_connections_closed_total{listener=grpc reason=handshake}`] == 0 {
		t.Error("no handshake has made room")
	}
}
