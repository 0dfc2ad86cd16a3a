package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the longest wait for an expected event.
const patience = 20 * time.Second

// logged hands every line of a log to a channel.
type logged struct {
	lines chan string
	mu    sync.Mutex
	all   strings.Builder
}

func newLog() (*logged, *slog.Logger) {
	l := &logged{lines: make(chan string, 1000)}
	return l, slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.all.Write(p)
	l.mu.Unlock()
	l.lines <- string(p)
	return len(p), nil
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// wait waits for a line with this text.
func (l *logged) wait(t *testing.T, text string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case line := <-l.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-late:
			t.Fatalf("the log never said %q:\n%s", text, l)
		}
	}
}

func files(pair tlstest.Pair, ca *tlstest.Authority) map[string][]byte {
	return map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.PEM}
}

// fixture is a volume whose files are loaded and watched.
type fixture struct {
	*tlsfiles.Files
	volume   *tlstest.Volume
	log      *logged
	registry *prometheus.Registry
}

func watched(t *testing.T, o tlsfiles.Options, content map[string][]byte) *fixture {
	t.Helper()
	f := &fixture{volume: tlstest.NewVolume(t, content), registry: prometheus.NewRegistry()}
	o.Cert, o.Key, o.CA = f.volume.Path("tls.crt"), f.volume.Path("tls.key"), f.volume.Path("ca.crt")
	o.Use, o.Metrics = "test", prom.With(f.registry)
	f.log, o.Log = newLog()
	var err error
	if f.Files, err = tlsfiles.Load(o); err != nil {
		t.Fatal(err)
	}
	servicetest.Serve(t, f.Run)
	return f
}

func (f *fixture) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// shake shakes hands over a socket and returns the server's certificate and the errors of both sides.
func shake(t *testing.T, server, client *tls.Config) (shown *x509.Certificate, serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		secure := tls.Server(conn, server)
		if err := secure.Handshake(); err != nil {
			done <- err
			return
		}
		_, err = secure.Write([]byte("k"))
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(conn, client)
	_, clientErr = io.ReadFull(secure, make([]byte, 1)) // a rejected client notices it when it reads
	if state := secure.ConnectionState(); len(state.PeerCertificates) > 0 {
		shown = state.PeerCertificates[0]
	}
	return shown, <-done, clientErr
}

func server(t *testing.T, f *tlsfiles.Files) *tls.Config {
	t.Helper()
	c, err := f.Server()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewConnectionsGetTheNewCertificate(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	client := ca.Issue(t, "client")
	f := watched(t, tlsfiles.Options{Rescan: time.Hour}, files(ca.Issue(t, "first.test"), ca))
	config := server(t, f.Files) // made once, as a server does
	dial := func(name string) (*x509.Certificate, error) {
		shown, _, err := shake(t, config, &tls.Config{ServerName: name, RootCAs: ca.Pool(), Certificates: []tls.Certificate{client.TLS(t)}})
		return shown, err
	}
	if _, err := dial("first.test"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"second.test", "third.test"} {
		f.volume.Swap(t, files(ca.Issue(t, name), ca))
		f.log.wait(t, "read again")
		shown, err := dial(name)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := f.metric(t, "ratelimitd_tls_certificate_expiry_timestamp_seconds"), float64(shown.NotAfter.Unix()); got != want {
			t.Errorf("the metric says that the certificate ends at %v, it ends at %v", got, want)
		}
	}
}

func TestABadVersionDoesNotReplaceAGoodOne(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	good := ca.Issue(t, "good.test")
	client := ca.Issue(t, "client")
	other := ca.Issue(t, "other.test")
	f := watched(t, tlsfiles.Options{Rescan: time.Hour}, files(good, ca))
	config := server(t, f.Files)
	serves := func(name string) {
		t.Helper()
		if _, _, err := shake(t, config, &tls.Config{ServerName: name, RootCAs: ca.Pool(), Certificates: []tls.Certificate{client.TLS(t)}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for what, bad := range map[string]map[string][]byte{
		"a key of another certificate": {"tls.crt": other.Cert, "tls.key": good.Key, "ca.crt": ca.PEM},
		"no certificate":               {"tls.crt": []byte("nothing"), "tls.key": good.Key, "ca.crt": ca.PEM},
		"no CA":                        {"tls.crt": other.Cert, "tls.key": other.Key, "ca.crt": []byte("nothing")},
		"a file that is missing":       {"tls.crt": other.Cert, "tls.key": other.Key},
	} {
		before := f.metric(t, "ratelimitd_tls_reload_failures_total")
		f.volume.Swap(t, bad)
		f.log.wait(t, "cannot be used")
		serves("good.test")
		if got := f.metric(t, "ratelimitd_tls_reload_failures_total"); got <= before {
			t.Errorf("%s: %v failures, before %v", what, got, before)
		}
	}
	f.volume.Swap(t, map[string][]byte{"tls.crt": other.Cert, "tls.key": good.Key, "ca.crt": []byte("nothing")})
	f.log.wait(t, "cannot be used")
	f.volume.Swap(t, files(other, ca))
	f.log.wait(t, "read again")
	serves("other.test")
	if said := f.log.String(); !strings.Contains(said, "/tls.crt ") || !strings.Contains(said, "subject=") {
		t.Errorf("the log does not name what changed since the version in use:\n%s", said)
	}
	if strings.Contains(f.log.String(), "PRIVATE") {
		t.Error("a key is in the log")
	}
}

// Changes without an event of the file system are found by rescanning.
func TestRescanFindsWhatWasNotReported(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	dir, elsewhere := t.TempDir(), t.TempDir()
	write := func(pair tlstest.Pair) {
		t.Helper()
		for name, content := range map[string][]byte{"cert": pair.Cert, "key": pair.Key} {
			if err := os.WriteFile(filepath.Join(elsewhere, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(ca.Issue(t, "first.test"))
	for _, name := range []string{"cert", "key"} {
		if err := os.Symlink(filepath.Join(elsewhere, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	lines, log := newLog()
	f, err := tlsfiles.Load(tlsfiles.Options{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), Rescan: 10 * time.Millisecond, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	write(ca.Issue(t, "second.test"))
	lines.wait(t, "second.test")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if shown, _, err := shake(t, server(t, f), &tls.Config{ServerName: "second.test", RootCAs: ca.Pool()}); err != nil {
		t.Errorf("%v, %v", shown, err)
	}
}

func TestClientsNeedACertificateOfTheCA(t *testing.T) {
	ca, stranger := tlstest.NewAuthority(t, "one"), tlstest.NewAuthority(t, "two")
	f := watched(t, tlsfiles.Options{Clients: []string{"client.test"}, Rescan: time.Hour}, files(ca.Issue(t, "server.test"), ca))
	config := server(t, f.Files)
	for _, tt := range []struct {
		name  string
		certs []tls.Certificate
		ok    bool
	}{
		{"none", nil, false},
		{"of another CA", []tls.Certificate{stranger.Issue(t, "client.test").TLS(t)}, false},
		{"for another name", []tls.Certificate{ca.Issue(t, "other.test").TLS(t)}, false},
		{"expired", []tls.Certificate{ca.IssueUntil(t, time.Now().Add(-time.Minute), "client.test").TLS(t)}, false},
		{"for the name", []tls.Certificate{ca.Issue(t, "client.test").TLS(t)}, true},
		{"for the name among others", []tls.Certificate{ca.Issue(t, "other.test", "client.test").TLS(t)}, true},
		{"for all names below", []tls.Certificate{ca.Issue(t, "*.test").TLS(t)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, serverErr, clientErr := shake(t, config, &tls.Config{ServerName: "server.test", RootCAs: ca.Pool(), Certificates: tt.certs})
			if (serverErr == nil) != tt.ok || (clientErr == nil) != tt.ok {
				t.Errorf("the server says %v, the client %v", serverErr, clientErr)
			}
		})
	}

	// The CA changes: clients of the old one are rejected, and those of the new one accepted, including an earlier
	// session.
	cache := tls.NewLRUClientSessionCache(10)
	old := &tls.Config{ServerName: "server.test", RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, "client.test").TLS(t)}, ClientSessionCache: cache}
	if _, _, err := shake(t, config, old); err != nil {
		t.Fatal(err)
	}
	f.volume.Swap(t, files(ca.Issue(t, "server.test"), stranger))
	f.log.wait(t, "read again")
	if _, serverErr, clientErr := shake(t, config, old); serverErr == nil || clientErr == nil {
		t.Errorf("a client of the old CA: the server says %v, the client %v", serverErr, clientErr)
	}
	fresh := &tls.Config{ServerName: "server.test", RootCAs: ca.Pool(), Certificates: []tls.Certificate{stranger.Issue(t, "client.test").TLS(t)}}
	if _, serverErr, clientErr := shake(t, config, fresh); serverErr != nil || clientErr != nil {
		t.Errorf("a client of the new CA: the server says %v, the client %v", serverErr, clientErr)
	}
}

func TestANameMayBeAURI(t *testing.T) {
	const name = "spiffe://cluster.local/ns/edge/sa/gateway"
	ca := tlstest.NewAuthority(t, "one")
	f := watched(t, tlsfiles.Options{Clients: []string{"other.test", name}, Rescan: time.Hour}, files(ca.Issue(t, "server.test"), ca))
	for _, tt := range []struct {
		names []string
		ok    bool
	}{{[]string{name}, true}, {[]string{name + "/more"}, false}, {[]string{"gateway"}, false}, {[]string{"other.test"}, true}, {[]string{"other.test", "gateway"}, true}} {
		_, serverErr, _ := shake(t, server(t, f.Files), &tls.Config{ServerName: "server.test", RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, tt.names...).TLS(t)}})
		if (serverErr == nil) != tt.ok {
			t.Errorf("%s: %v", tt.names, serverErr)
		}
	}
}

// A name in the subject is not an alternative name, as in envoyproxy/ratelimit. Without names in Clients, such a
// certificate is accepted.
func TestACertificateWithoutAlternativeNames(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	for name, ok := range map[string]bool{"": true, "gateway": false, "spiffe://cluster.local/gateway": false, "10.0.0.1": false} {
		f := watched(t, tlsfiles.Options{Clients: strings.Fields(name), Rescan: time.Hour}, files(ca.Issue(t, "server.test"), ca))
		_, serverErr, _ := shake(t, server(t, f.Files), &tls.Config{ServerName: "server.test", RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, "CN=gateway").TLS(t)}})
		if (serverErr == nil) != ok {
			t.Errorf("%q: %v", name, serverErr)
		}
	}
}

func TestNothingOlderThanTLS12(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	f := watched(t, tlsfiles.Options{Rescan: time.Hour}, files(ca.Issue(t, "server.test"), ca))
	client := []tls.Certificate{ca.Issue(t, "client").TLS(t)}
	for version, ok := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		_, serverErr, _ := shake(t, server(t, f.Files), &tls.Config{
			ServerName: "server.test", RootCAs: ca.Pool(), Certificates: client, MinVersion: version, MaxVersion: version,
		})
		if (serverErr == nil) != ok {
			t.Errorf("%s: %v", tls.VersionName(version), serverErr)
		}
	}
}

func TestDial(t *testing.T) {
	ca, stranger := tlstest.NewAuthority(t, "one"), tlstest.NewAuthority(t, "two")
	f := watched(t, tlsfiles.Options{Rescan: time.Hour}, files(ca.Issue(t, "client.test"), ca))
	serve := func(by *tlstest.Authority, clients *tlstest.Authority, names ...string) (address string, seen chan string) {
		t.Helper()
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{by.Issue(t, names...).TLS(t)},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool(),
		})
		if err != nil {
			t.Fatal(err)
		}
		seen = make(chan string, 10)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.SetDeadline(time.Now().Add(patience))
				if err := conn.(*tls.Conn).Handshake(); err != nil {
					seen <- "error: " + err.Error()
				} else {
					seen <- conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
				}
				_ = conn.Close()
			}
		}()
		t.Cleanup(func() { _ = l.Close(); <-done })
		return l.Addr().String(), seen
	}
	dial := func(f *tlsfiles.Files, address string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, err := f.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}

	address, seen := serve(ca, ca, "127.0.0.1")
	if err := dial(f.Files, address); err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got != "client.test" {
		t.Errorf("the server saw %s", got)
	}
	var unknown x509.UnknownAuthorityError
	address, _ = serve(stranger, ca, "127.0.0.1")
	if err := dial(f.Files, address); !errors.As(err, &unknown) {
		t.Errorf("a server of another CA: %v", err)
	}
	var wrongName x509.HostnameError
	address, _ = serve(ca, ca, "server.test")
	if err := dial(f.Files, address); !errors.As(err, &wrongName) {
		t.Errorf("a server of another name: %v", err)
	}

	// The same directory, read with other options.
	load := func(o tlsfiles.Options) *tlsfiles.Files {
		t.Helper()
		o.Cert, o.Key, o.CA = f.volume.Path("tls.crt"), f.volume.Path("tls.key"), f.volume.Path("ca.crt")
		loaded, err := tlsfiles.Load(o)
		if err != nil {
			t.Fatal(err)
		}
		return loaded
	}
	if err := dial(load(tlsfiles.Options{Name: "server.test"}), address); err != nil {
		t.Errorf("with the name given: %v", err)
	}
	if err := dial(load(tlsfiles.Options{SkipName: true}), address); err != nil {
		t.Errorf("without looking at the name: %v", err)
	}
	address, _ = serve(stranger, ca, "server.test")
	if err := dial(load(tlsfiles.Options{SkipName: true}), address); !errors.As(err, &unknown) {
		t.Errorf("without looking at the name, a server of another CA: %v", err)
	}

	// Certificate and CA change: the next connection has the new ones.
	f.volume.Swap(t, files(stranger.Issue(t, "fresh.test"), stranger))
	f.log.wait(t, "read again")
	address, seen = serve(stranger, stranger, "127.0.0.1")
	if err := dial(f.Files, address); err != nil {
		t.Error(err)
	}
	if got := <-seen; got != "fresh.test" {
		t.Errorf("the server saw %s", got)
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	one, two := ca.Issue(t, "one.test"), ca.Issue(t, "two.test")
	v := tlstest.NewVolume(t, map[string][]byte{"one.crt": one.Cert, "one.key": one.Key, "two.key": two.Key, "bad": []byte("nothing")})
	for _, tt := range []struct {
		o    tlsfiles.Options
		want string
	}{
		{tlsfiles.Options{Cert: v.Path("one.crt")}, "one.crt needs its key"},
		{tlsfiles.Options{Key: v.Path("one.key")}, "one.key needs its certificate"},
		{tlsfiles.Options{Cert: v.Path("one.crt"), Key: v.Path("missing")}, "missing"},
		{tlsfiles.Options{Cert: v.Path("one.crt"), Key: v.Path("two.key")}, "two.key"},
		{tlsfiles.Options{CA: v.Path("bad")}, "no certificate"},
	} {
		if _, err := tlsfiles.Load(tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.want)
		}
	}
	for _, o := range []tlsfiles.Options{{}, {Cert: v.Path("one.crt"), Key: v.Path("one.key"), Clients: []string{"client.test"}}} {
		f, err := tlsfiles.Load(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Server(); err == nil {
			t.Errorf("%+v: a server can be made", o)
		}
	}
}

func TestAnExpiredCertificateIsReported(t *testing.T) {
	ca := tlstest.NewAuthority(t, "one")
	old := ca.IssueUntil(t, time.Now().Add(-time.Minute), "old.test")
	v := tlstest.NewVolume(t, files(old, ca))
	lines, log := newLog()
	if _, err := tlsfiles.Load(tlsfiles.Options{Cert: v.Path("tls.crt"), Key: v.Path("tls.key"), Log: log}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lines.String(), "expired") {
		t.Errorf("the log:\n%s", lines)
	}
}
