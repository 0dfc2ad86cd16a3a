package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// encrypted is a cluster of one service, reached over TLS.
func encrypted(name string, s *service, authority string, certificate ...string) cluster {
	own := ""
	if len(certificate) > 0 {
		own = fmt.Sprintf("tls_certificates: [{certificate_chain: {filename: %s}, private_key: {filename: %s}}]", certificate[0], certificate[1])
	}
	return cluster{Name: name, HTTP2: true, Endpoints: []string{s.GRPC}, Extra: `
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    sni: ratelimitd.test
    common_tls_context:
      validation_context:
        trusted_ca: {filename: ` + authority + `}
        match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: ratelimitd.test}}]
      ` + own}
}

// TLS between Envoy and ratelimitd. A client without access gets no answer, and Envoy's failure mode decides.
func TestTLS(t *testing.T) {
	needsEnvoy(t)
	authority, other := tlstest.NewAuthority(t, "ours"), tlstest.NewAuthority(t, "somebody else's")
	server := authority.Issue(t, "ratelimitd.test")
	client, stranger, forged := authority.Issue(t, "envoy.test"), authority.Issue(t, "stranger.test"), other.Issue(t, "envoy.test")
	files := tlstest.NewVolume(t, map[string][]byte{
		"ca": authority.PEM, "other-ca": other.PEM, "cert": server.Cert, "key": server.Key,
		"client-cert": client.Cert, "client-key": client.Key, "stranger-cert": stranger.Cert, "stranger-key": stranger.Key,
		"forged-cert": forged.Cert, "forged-key": forged.Key,
	})
	env := []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + files.Path("cert"), "GRPC_SERVER_TLS_KEY=" + files.Path("key")}
	dir := rules(t, perUser(1))
	plain := startService(t, "TLS", dir, env...)
	mutual := startService(t, "mTLS", dir, append(env, "GRPC_CLIENT_TLS_CACERT="+files.Path("ca"), "GRPC_CLIENT_TLS_SAN=envoy.test")...)

	clusters := []cluster{
		upstreamCluster(startUpstream(t)),
		encrypted("tls", plain, files.Path("ca")),
		encrypted("mtls", mutual, files.Path("ca"), files.Path("client-cert"), files.Path("client-key")),
		encrypted("wrong-authority", plain, files.Path("other-ca")),
		encrypted("no-certificate", mutual, files.Path("ca")),
		encrypted("wrong-name", mutual, files.Path("ca"), files.Path("stranger-cert"), files.Path("stranger-key")),
		encrypted("forged", mutual, files.Path("ca"), files.Path("forged-cert"), files.Path("forged-key")),
		{Name: "unencrypted", HTTP2: true, Endpoints: []string{plain.GRPC}},
	}
	var listeners []listener
	for _, c := range clusters[1:] {
		l := byUser("failure_mode_deny: true")
		l.Name, l.Call, l.Timeout = c.Name, "envoy_grpc: {cluster_name: "+c.Name+"}", "2s"
		listeners = append(listeners, l)
	}
	e := startEnvoy(t, bootstrap{Clusters: clusters, Listeners: listeners})
	for _, c := range clusters[1:] {
		t.Run(c.Name, func(t *testing.T) {
			want, counted := []int{500, 500}, verdicts{Error: 2}
			if c.Name == "tls" || c.Name == "mtls" {
				want, counted = []int{200, 429}, verdicts{OK: 1, OverLimit: 1}
			}
			if got := e.codes(t, 2, c.Name, "/", "x-user", "u"); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if got := e.verdicts(t, c.Name); got != counted {
				t.Errorf("Envoy counted %+v, want %+v", got, counted)
			}
		})
	}
	if got, want := answered(t, plain, mutual), (answers{OK: 2, OverLimit: 2}); got != want {
		t.Errorf("the services answered %+v, want %+v", got, want)
	}
}

// Under load, certificates change and connections reach their maximum age. Envoy reconnects with the new certificate,
// and no request is lost.
func TestCertificateRotation(t *testing.T) {
	needsEnvoy(t)
	authority := tlstest.NewAuthority(t, "ours")
	pair := authority.Issue(t, "ratelimitd.test")
	files := tlstest.NewVolume(t, map[string][]byte{"ca": authority.PEM, "cert": pair.Cert, "key": pair.Key})
	s := startService(t, "ratelimitd", rules(t, perUser(1_000_000)), "GRPC_SERVER_USE_TLS=true",
		"GRPC_SERVER_TLS_CERT="+files.Path("cert"), "GRPC_SERVER_TLS_KEY="+files.Path("key"), "GRPC_MAX_CONNECTION_AGE=500ms")
	e := startEnvoy(t, bootstrap{
		Clusters:  []cluster{upstreamCluster(startUpstream(t)), encrypted("rls", s, files.Path("ca"))},
		Listeners: []listener{byUser("failure_mode_deny: true")},
	})
	l := startLoad(t, "main", "/", 20, e)
	l.next(t, 50)
	fresh := authority.Issue(t, "ratelimitd.test")
	files.Swap(t, map[string][]byte{"ca": authority.PEM, "cert": fresh.Cert, "key": fresh.Key})
	s.Log.Wait(t, "TLS files were read again")
	conn, err := tls.Dial("tcp", s.GRPC, &tls.Config{RootCAs: authority.Pool(), ServerName: "ratelimitd.test", NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	shown := conn.ConnectionState().PeerCertificates[0]
	_ = conn.Close()
	if want := fresh.TLS(t).Leaf; !shown.Equal(want) {
		t.Errorf("shows certificate %v, want %v", shown.SerialNumber, want.SerialNumber)
	}
	before := e.stats(t, "cluster.rls.upstream_cx_total")["cluster.rls.upstream_cx_total"]
	await(t, "Envoy to connect twice more", func(context.Context) error {
		if now := e.stats(t, "cluster.rls.upstream_cx_total")["cluster.rls.upstream_cx_total"]; now < before+2 {
			return fmt.Errorf("%d connections, %d before", now, before)
		}
		return nil
	})
	all := l.stop()
	t.Log(all)
	if all.Failed != 0 || all.Denied != 0 {
		t.Errorf("requests were lost: %v", all)
	}
	if got, want := e.verdicts(t, "main"), (verdicts{OK: all.Answered}); got != want {
		t.Errorf("Envoy counted %+v, the callers %+v", got, want)
	}
}

// Envoy pings its connections at the interval of connection_keepalive, also without calls. Each ping is answered, and
// no connection is closed for too many pings.
func TestKeepalive(t *testing.T) {
	s := startService(t, "ratelimitd", rules(t, perUser(1_000_000)))
	e := startEnvoy(t, bootstrap{
		Clusters: []cluster{upstreamCluster(startUpstream(t)), {
			Name: "rls", HTTP2: true, Endpoints: []string{s.GRPC},
			HTTP2Options: "connection_keepalive: {interval: 0.1s, timeout: 10s, interval_jitter: {value: 0}}",
		}},
		Listeners: []listener{byUser("failure_mode_deny: true")},
	})
	const received, pong = "cluster.rls.upstream_cx_rx_bytes_total", 17
	for range 2 { // a call, and then 10 pings without one
		if got := e.codes(t, 1, "main", "/", "x-user", "u"); got[0] != 200 {
			t.Errorf("got %v", got)
		}
		before := e.stats(t, received)[received]
		await(t, "10 pings", func(context.Context) error {
			if now := e.stats(t, received)[received]; now < before+10*pong {
				return fmt.Errorf("%d bytes have come back", now-before)
			}
			return nil
		})
	}
	stats := e.stats(t, "cluster.rls.(upstream_cx_total|upstream_cx_destroy|upstream_cx_close_notify|http2.keepalive_timeout|http2.tx_reset)$")
	if stats["cluster.rls.upstream_cx_total"] != 1 {
		t.Errorf("%d connections, want one that stays", stats["cluster.rls.upstream_cx_total"])
	}
	for _, name := range []string{"upstream_cx_destroy", "upstream_cx_close_notify", "http2.keepalive_timeout", "http2.tx_reset"} {
		if n := stats["cluster.rls."+name]; n != 0 {
			t.Errorf("%s: %d, want 0", name, n)
		}
	}
}

// Envoy and ratelimitd connect over a unix socket, as in a sidecar.
func TestUnixSocket(t *testing.T) {
	needsEnvoy(t)
	socket := filepath.Join(t.TempDir(), "s")
	s := startService(t, "ratelimitd", rules(t, perUser(1)), "GRPC_UDS="+socket)
	e := startEnvoy(t, bootstrap{
		Clusters:  []cluster{upstreamCluster(startUpstream(t)), {Name: "rls", HTTP2: true, Endpoints: []string{socket}}},
		Listeners: []listener{byUser("failure_mode_deny: true")},
	})
	if got := e.codes(t, 2, "main", "/", "x-user", "u"); !slices.Equal(got, []int{200, 429}) {
		t.Errorf("got %v", got)
	}
	if got, want := s.metrics(t).answers(), (answers{OK: 1, OverLimit: 1}); got != want {
		t.Errorf("answered %+v, want %+v", got, want)
	}
}

// An unhealthy service gets no more calls, although it would still answer. Once it is healthy again, as a new process,
// it gets calls again.
func TestHealthChecks(t *testing.T) {
	f := startFleet(t, perUser(1_000_000), "RATELIMITD_DRAIN_DELAY=30s")
	e := startEnvoy(t, bootstrap{
		Clusters:  []cluster{upstreamCluster(f.upstream), rls(f.services...).with(often)},
		Listeners: []listener{byUser("failure_mode_deny: true")},
	})
	e.awaitHealthy(t, "rls", 2)
	l := startLoad(t, "main", "/", 20, e)
	red, green := f.services[0], f.services[1]
	t.Cleanup(func() { // otherwise it would keep answering for the rest of the half minute
		red.Kill(t)
		green.Kill(t)
	})
	l.next(t, 50)
	if red.metrics(t).answers().OK == 0 || green.metrics(t).answers().OK == 0 {
		t.Error("not both are asked while both are green")
	}
	red.Signal(t, syscall.SIGTERM)
	e.awaitHealthy(t, "rls", 1)
	await(t, "it to be asked no more", func(context.Context) error {
		before := red.metrics(t).answers().OK
		l.next(t, 100)
		if more := red.metrics(t).answers().OK - before; more != 0 {
			return fmt.Errorf("%d more answers", more)
		}
		return nil
	})
	if !red.Running() {
		t.Error("it ended, and this showed nothing")
	}
	all := l.stop()
	t.Log(all)
	if all.Failed != 0 {
		t.Errorf("requests were lost: %v", all)
	}
	f.agree(t, []*envoy{e}, "main")
}
