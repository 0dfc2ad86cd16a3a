package main

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// Two processes that share counters send the same event about a denial: a receiver removes one of them by its id and
// source.
func TestEventsOfTwoProcesses(t *testing.T) {
	r := redistest.Start(t)
	var all []event
	for _, name := range []string{"one", "two"} {
		to := filepath.Join(t.TempDir(), name)
		i := begin(t, map[string]string{"REDIS_URL": r.Addr, "RATELIMITD_EVENTS": to}, "--rules", rulesOf(t, fiveADay))
		answers(deniedAtOnce(1), deniedAtOnce(1))(t, i)
		i.stop()
		i.log.Wait(t, "stopped")
		got := eventsIn(t, to)
		if len(got) != 1 {
			t.Fatalf("process %s sent %d events for two denials of one counter, want 1", name, len(got))
		}
		all = append(all, got[0])
	}
	if a, b := all[0], all[1]; a.ID != b.ID || a.Source != b.Source || a.Data.Counter != b.Data.Counter {
		t.Errorf("the processes sent %+v and %+v", a, b)
	}
}

// The log shows where events go, without a part of the URL or a header that may be secret.
func TestSecretsOfEventsAreNotShown(t *testing.T) {
	racetest.Sequential(t)
	url, _ := listenEvents(t, http.StatusForbidden, nil)
	host := strings.TrimPrefix(url, "http://")
	i := begin(t, map[string]string{
		"RATELIMITD_EVENTS":              "http://u:" + secret + "@" + host + "/" + secret + "?key=" + secret,
		"RATELIMITD_EVENTS_HEADERS_FILE": file(t, "Authorization: Bearer "+secret+"\n"), "LOG_LEVEL": "debug",
	}, "--rules", rulesOf(t, fiveADay))
	answers(deniedAtOnce(1))(t, i)
	if to := i.log.Wait(t, "events cannot be sent; they wait")["to"]; to != url {
		t.Errorf("the log says that events go to %v, want %s", to, url)
	}
	i.log.Wait(t, "the headers of RATELIMITD_EVENTS_HEADERS_FILE are sent in plain text, because RATELIMITD_EVENTS is no https URL")
	if strings.Contains(i.log.String(), secret) {
		t.Errorf("the log has a secret:\n%s", i.log)
	}
}

// A webhook and a collector that accept requests and never answer delay a stop by a second each.
func TestStopLetsGoOfReceiversThatHang(t *testing.T) {
	asked, over := make(chan string, 100), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-over
	}))
	defer hangs.Close()
	defer close(over)
	p := startProcess(t, map[string]string{
		"RATELIMITD_EVENTS": hangs.URL + "/webhook",
		"TRACING_ENABLED":   "true", "TRACING_SAMPLING_RATE": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": hangs.URL,
	}, "--rules", rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 0}\n"))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil {
		t.Fatal(err)
	}
	for seen := map[string]bool{}; !seen["/webhook"] || !seen["/v1/traces"]; {
		select {
		case path := <-asked:
			seen[path] = true
		case <-time.After(patience):
			t.Fatalf("only %v were asked", seen)
		}
	}
	began := time.Now()
	p.Signal(t, syscall.SIGTERM)
	select {
	case <-p.Ended:
	case <-time.After(patience):
		t.Fatalf("it did not end within %v", patience)
	}
	took := time.Since(began)
	t.Logf("the stop took %v", took)
	if took > 4500*time.Millisecond {
		t.Errorf("the stop took %v, want about 2 s", took)
	}
}

// The authorities of a webhook's certificate are the system's, or those in the files of SSL_CERT_FILE.
func TestAuthoritiesOfAWebhook(t *testing.T) {
	authority := tlstest.NewAuthority(t, "webhook")
	to, requests := listenEvents(t, http.StatusOK, &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, "127.0.0.1").TLS(t)}})
	env := map[string]string{"RATELIMITD_EVENTS": to}
	deny := func() *servicetest.Process {
		t.Helper()
		p := startProcess(t, env, "--rules", rulesOf(t, fiveADay))
		if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), deniedAtOnce(1)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	unknown := deny().Log.Wait(t, "events cannot be sent; they wait")
	if reason, _ := unknown["error"].(string); !strings.Contains(reason, "certificate signed by unknown authority") {
		t.Errorf("without its authority: %v", unknown)
	}
	env["SSL_CERT_FILE"] = file(t, string(authority.PEM))
	deny()
	select {
	case <-requests:
	case <-time.After(patience):
		t.Error("with its authority in SSL_CERT_FILE no event arrives")
	}
}
