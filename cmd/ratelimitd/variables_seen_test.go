package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// This file has the looks that observe a service, and the servers and files that a service finds.

// running returns a look that requires the service to have started.
func running(l look) look {
	return func(t *testing.T, i *instance) string {
		if i.err != nil {
			return i.failed()
		}
		return l(t, i)
	}
}

// answers sends requests in order and returns the codes with the remaining hits, or the error's code.
func answers(requests ...*ratelimitv3.RateLimitRequest) look {
	return running(func(t *testing.T, i *instance) string {
		client := ratelimitv3.NewRateLimitServiceClient(dial(t, i.grpc()))
		var said []string
		for _, r := range requests {
			got, err := client.ShouldRateLimit(t.Context(), r)
			if err != nil {
				said = append(said, status.Code(err).String())
				continue
			}
			said = append(said, got.GetOverallCode().String())
		}
		return strings.Join(said, " ")
	})
}

// times repeats a request n times.
func times(n int, r *ratelimitv3.RateLimitRequest) []*ratelimitv3.RateLimitRequest {
	return slices.Repeat([]*ratelimitv3.RateLimitRequest{r}, n)
}

// heavy returns a request with this number of hits.
func heavy(hits uint32, r *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitRequest {
	r = proto.Clone(r).(*ratelimitv3.RateLimitRequest) //nolint:forcetypeassert // it is one
	r.HitsAddend = hits
	return r
}

// then runs both looks and returns the result of the second.
func then(first, next look) look {
	return func(t *testing.T, i *instance) string {
		first(t, i)
		return next(t, i)
	}
}

// metric returns the lines of /metrics that start with prefix.
func metric(prefix string) look {
	return running(func(t *testing.T, i *instance) string {
		return strings.Join(shown(t, i.http()+"/metrics", prefix), "\n")
	})
}

// page returns the status of a page and the part of its body that matches find.
func page(path string, debug bool, find string) look {
	found := regexp.MustCompile(find)
	return running(func(t *testing.T, i *instance) string {
		at := i.http()
		if debug {
			at = i.debug()
		}
		code, body := get(t, at+path)
		return http.StatusText(code) + found.FindString(body)
	})
}

// logs waits for a message and returns one of its fields.
func logs(message, field string) look {
	return running(func(t *testing.T, i *instance) string {
		text, _ := i.log.Wait(t, message)[field].(string)
		return text
	})
}

// logsOneOf waits until the log contains one of these texts.
func logsOneOf(texts ...string) look {
	return running(func(t *testing.T, i *instance) string {
		which := ""
		eventually(t, "one of "+strings.Join(texts, ", "), func() bool {
			all := i.log.String()
			for _, text := range texts {
				if strings.Contains(all, text) {
					which = text
				}
			}
			return which != ""
		})
		return which
	})
}

// clientHeader returns a header of an answer.
func clientHeader(name string) look {
	return running(func(t *testing.T, i *instance) string {
		resp, err := http.Post(i.http()+"/json", "application/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`)) //nolint:noctx // the test's own server
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.Header.Get(name)
	})
}

// within reports whether a condition is reached in time. With the variable set it waits for long, which must be less
// than the default would take; without it, for short.
func within(t *testing.T, i *instance, name string, long, short time.Duration, reached func() bool) bool {
	t.Helper()
	most := long
	if i.env[name] == absent {
		most = short
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(most); !reached(); {
		select {
		case <-tick.C:
		case <-late:
			return false
		}
	}
	return true
}

// either returns one of two words.
func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// handshakes is a server that reports how the handshake of each connection went, and closes the connection.
type handshakes struct {
	addr string
	came chan string
}

func listenTLS(t *testing.T, pair tlstest.Pair) *handshakes {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := &handshakes{l.Addr().String(), make(chan string, 1000)}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair.TLS(t)}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2"}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				server := tls.Server(conn, config)
				var plain tls.RecordHeaderError
				switch err := server.Handshake(); {
				case errors.As(err, &plain):
					h.came <- "plain text"
				case err != nil && !strings.Contains(err.Error(), "remote error"):
					return // the client has gone
				case err != nil:
					h.came <- "rejects the server's certificate"
				case len(server.ConnectionState().PeerCertificates) > 0:
					h.came <- "shows the certificate of " + server.ConnectionState().PeerCertificates[0].Subject.CommonName
				default:
					h.came <- "encrypted"
				}
			}()
		}
	}()
	return h
}

// look returns the first handshake's result.
func (h *handshakes) look(t *testing.T, i *instance) string {
	if i.err != nil {
		return "does not start"
	}
	select {
	case what := <-h.came:
		return what
	case <-time.After(patience):
		t.Fatalf("no connection came:\n%s", i.log)
		return ""
	}
}

// listenFirst starts a server that keeps the first match of find on any connection.
func listenFirst(t *testing.T, network, find string) (addr string, l look) {
	t.Helper()
	at := "127.0.0.1:0"
	listener, err := net.Listen(network, at) //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var mu sync.Mutex
	var said bytes.Buffer
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 4096)
				for {
					n, err := conn.Read(buf)
					mu.Lock()
					said.Write(buf[:n])
					mu.Unlock()
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, "-ERR who are you\r\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String(), running(func(t *testing.T, _ *instance) string {
		eventually(t, "a command", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(said.String(), "\r\n")
		})
		mu.Lock()
		defer mu.Unlock()
		return either(strings.Contains(strings.ToLower(said.String()), strings.ToLower(find)), find, "not "+find)
	})
}

// ads is an xDS server that keeps the requests it receives. It answers with the function answer, or not at all if that
// is nil.
type ads struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	addr   string
	answer func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error

	mu       sync.Mutex
	headers  metadata.MD // metadata of the first stream
	first    *discoveryv3.DiscoveryRequest
	streams  int
	rejected int // number of requests that reject something
}

func listenADS(t *testing.T, answer func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error) *ads {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	a := &ads{addr: l.Addr().String(), answer: answer}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, a)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// StreamAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (a *ads) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	a.mu.Lock()
	a.streams++
	if a.headers == nil {
		a.headers, _ = metadata.FromIncomingContext(stream.Context())
	}
	a.mu.Unlock()
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		a.mu.Lock()
		if a.first == nil {
			a.first = r
		}
		if r.GetErrorDetail() != nil {
			a.rejected++
		}
		a.mu.Unlock()
		if a.answer != nil {
			if err := a.answer(stream); err != nil {
				return err
			}
		}
	}
}

func (a *ads) count(of *int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *of
}

// asked waits for the first request and describes it with say.
func (a *ads) asked(say func(*discoveryv3.DiscoveryRequest, metadata.MD) string) look {
	return running(func(t *testing.T, _ *instance) string {
		eventually(t, "a request", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.first != nil
		})
		return say(a.first, a.headers)
	})
}

// xdsFrom returns the environment that loads rules from an xDS server.
func xdsFrom(addr string, more ...string) map[string]string {
	env := map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": addr}
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// pemFiles writes a certificate and its key as PEM files.
func pemFiles(t *testing.T, p tlstest.Pair) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "cert.pem", string(p.Cert))
	write(t, dir, "key.pem", string(p.Key))
	return dir + "/cert.pem", dir + "/key.pem"
}

func file(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "file", text)
	return dir + "/file"
}

// shakes describes a TLS handshake with a port of the service, for a client with or without a certificate.
func shakes(debug bool, certificates ...tls.Certificate) look {
	return func(t *testing.T, i *instance) string {
		if i.err != nil {
			return "does not start"
		}
		addr := i.svc.Server.GRPCAddr.String()
		if debug {
			addr = i.svc.Operators.DebugAddr.String()
		}
		conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, Certificates: certificates, NextProtos: []string{"h2"}}) //nolint:noctx // checking whose certificate it is is the test
		if err != nil {
			return "plain text"
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		// The server's verdict on the client's certificate comes after the handshake: as an alert, or with the first bytes,
		// which an HTTP/2 server sends on its own.
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err == nil {
			if _, err = conn.Read(make([]byte, 1)); err != nil {
				return "rejects the client"
			}
		}
		return "certificate of " + conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
}

// profiles requests a profile, which needs the role operate, with a client certificate.
func profiles(certificate tls.Certificate) look {
	return running(func(t *testing.T, i *instance) string {
		config := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Get("https://" + i.svc.Operators.DebugAddr.String() + "/debug/pprof/goroutine") //nolint:noctx // bounded by the client
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.Status
	})
}

// peeks looks at a counter with this token and returns the resulting code.
func peeks(token string) look {
	return running(func(t *testing.T, i *instance) string {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		_, err := adminv1.NewCounterServiceClient(dial(t, i.svc.Operators.DebugAddr.String())).
			Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: []*adminv1.Entry{{Key: "k", Value: "v"}}})
		return status.Code(err).String()
	})
}

// healthy returns the result of /healthcheck.
var healthy = running(func(t *testing.T, i *instance) string {
	code, _ := get(t, i.http()+"/healthcheck")
	return either(code == http.StatusOK, "green", "red")
})

// redisKeys returns the keys of counters in a Redis after a request.
func redisKeys(t *testing.T, more ...string) (map[string]string, look) {
	t.Helper()
	r := redistest.Start(t)
	env := map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s"}
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env, then(answers(ask("d", "k", "v")), running(func(t *testing.T, _ *instance) string {
		keys, err := r.Client(t).Keys(t.Context(), "*d?k?v*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`\d{6,}`).ReplaceAllString(strings.Join(keys, " "), "#")
	}))
}

// took compares the duration of a call with a bound.
func took(bound time.Duration, r *ratelimitv3.RateLimitRequest) look {
	return running(func(t *testing.T, i *instance) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		began := time.Now()
		_, err := ratelimitv3.NewRateLimitServiceClient(dial(t, i.grpc())).ShouldRateLimit(ctx, r)
		if status.Code(err) != codes.Unavailable {
			return status.Code(err).String()
		}
		return either(time.Since(began) >= bound, "long", "short")
	})
}

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(redistest.FreeAddr(t))
	return port
}

// merged merges several environments into one.
func merged(all ...map[string]string) map[string]string {
	env := make(map[string]string)
	for _, a := range all {
		maps.Copy(env, a)
	}
	return env
}

// collector is an OTLP receiver that keeps the spans and the attributes of their sender.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer

	mu     sync.Mutex
	spans  int
	sender map[string]string
}

// Export implements collectorv1.TraceServiceServer.
func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sender = make(map[string]string)
	for _, r := range req.GetResourceSpans() {
		for _, a := range r.GetResource().GetAttributes() {
			c.sender[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, s := range r.GetScopeSpans() {
			c.spans += len(s.GetSpans())
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *collector) got() (int, map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans, c.sender
}

// listen starts the collector on one protocol and returns its URL.
func (c *collector) listen(t *testing.T, protocol string) (url string) {
	t.Helper()
	if protocol == "http" {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			data, err := io.ReadAll(r.Body)
			if r.Header.Get("Content-Encoding") == "gzip" && err == nil {
				var unzipped *gzip.Reader
				if unzipped, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
					data, err = io.ReadAll(unzipped)
				}
			}
			var req collectorv1.ExportTraceServiceRequest
			if err == nil {
				err = proto.Unmarshal(data, &req)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_, _ = c.Export(r.Context(), &req)
			w.Header().Set("Content-Type", "application/x-protobuf")
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}
