package xds

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

func TestRulesFollowTheServer(t *testing.T) {
	server := newControl(t, "")
	server.set("1", perDay("one", "a", "k", 5))
	o := impatient(server.addr)
	o.NodeMetadata = map[string]string{"zone": "east", "tier": ""}
	o.Headers = map[string]string{"Authorization": "Bearer x:y"}
	c := run(t, o)

	c.inForce("a.k 5/day")
	server.acked("1")
	if got := c.state("one"); got.State != descriptor.FileLoaded || got.Rules != 1 || got.Since.IsZero() || !cmp.Equal(got.Domains, []string{"a"}) {
		t.Errorf("state %+v", got)
	}

	server.set("2", perDay("one", "a", "k", 7), perDay("two", "b", "k", 1))
	c.inForce("a.k 7/day", "b.k 1/day")
	server.acked("2")

	server.set("3", perDay("two", "b", "k", 1))
	c.inForce("b.k 1/day")
	server.acked("3")
	if tree := c.tree(); tree.Domain("a") != nil || tree.Domain("b") == nil || len(c.Files()) != 1 {
		t.Errorf("after a removal: %v, %+v", lines(tree), c.Files())
	}

	server.set("4")
	c.inForce()
	server.acked("4")
	if len(c.Files()) != 0 || c.tree().Domains() != 0 {
		t.Errorf("of an empty snapshot %+v is left", c.Files())
	}

	// Only the content matters: a new version with the same content is acknowledged and changes nothing.
	before := c.applied()
	server.set("5")
	server.acked("5")
	if c.applied() != before {
		t.Error("the same rules were put into force again")
	}

	requests := server.seen()
	for i, r := range requests {
		if r.GetTypeUrl() != typeURL || len(r.GetResourceNames()) > 0 || r.GetErrorDetail() != nil {
			t.Errorf("request %d: %v", i, r)
		}
		if n := r.GetNode(); n.GetId() != nodeID || n.GetMetadata().GetFields()["zone"].GetStringValue() != "east" || len(n.GetMetadata().GetFields()) != 2 {
			t.Errorf("request %d is of node %v", i, n)
		}
	}
	var got []string
	for _, r := range requests {
		got = append(got, r.GetVersionInfo()+"/"+r.GetResponseNonce())
	}
	if diff := cmp.Diff([]string{"/", "1/1", "2/2", "3/3", "4/4", "5/5"}, got); diff != "" {
		t.Errorf("versions and nonces (-want +got):\n%s", diff)
	}
	if got := server.headers[0].Get("authorization"); len(got) != 1 || got[0] != "Bearer x:y" {
		t.Errorf("the server saw authorization %q", got)
	}
}

// Bad resources of a set are rejected, and the rest takes effect. The server gets the reason, but not too often.
func TestABadSetIsRejected(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	server := newControl(t, "")
	server.set("1", perDay("one", "a", "k", 5), perDay("same", "s", "k", 1), perDay("gone", "g", "k", 1))
	o := impatient(server.addr)
	o.RejectedRetry, o.RejectedRetryMax = 100*time.Millisecond, 400*time.Millisecond
	o.Metrics = prom.With(registry)
	c := run(t, o)
	server.acked("1")

	bad := perDay("two", "b", "k", 1)
	bad.Descriptors[0].RateLimit.Unit = 99
	server.set("2", perDay("one", "a", "k", 7), perDay("same", "s", "k", 1), bad)
	await(t, "five rejections", func() bool { return len(server.nacks()) >= 5 })

	nacks := server.nacks()
	for i, n := range nacks {
		if n.GetVersionInfo() != "1" || n.GetResponseNonce() == "1" || n.GetErrorDetail().GetCode() != 3 ||
			!strings.Contains(n.GetErrorDetail().GetMessage(), `two: descriptors[0].rate_limit.unit: unknown unit "99"`) {
			t.Errorf("rejection %d: %v", i, n)
		}
	}
	// go-control-plane always resends the rejected set immediately. The waits are 100, 200, 400, 400 ms, minus up to a
	// quarter.
	if took := nacks[4].at.Sub(nacks[0].at); took < 3*1100*time.Millisecond/4 {
		t.Errorf("five rejections within %s", took)
	}
	if got := strings.Count(c.log.String(), "rules rejected"); got != 1 {
		t.Errorf("the rejection is logged %d times", got)
	}
	c.inForce("a.k 7/day", "s.k 1/day")
	for name, want := range map[string]struct {
		state descriptor.FileState
		rules int
		text  string
	}{
		"one":  {descriptor.FileLoaded, 1, ""},
		"same": {descriptor.FileLoaded, 1, ""},
		"two":  {descriptor.FileRejected, 0, `two: descriptors[0].rate_limit.unit: unknown unit "99"`},
	} {
		got := c.state(name)
		if got.State != want.state || got.Rules != want.rules || !strings.HasPrefix(strings.Join(got.Errors, "\n"), want.text) || (want.text == "") != (len(got.Errors) == 0) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP ratelimitd_rule_file_state 1 for each rule file or xDS resource in its state: loaded, stale or rejected.
# TYPE ratelimitd_rule_file_state gauge
ratelimitd_rule_file_state{file="one",state="loaded"} 1
ratelimitd_rule_file_state{file="same",state="loaded"} 1
ratelimitd_rule_file_state{file="two",state="rejected"} 1
# HELP ratelimitd_rule_reloads_total Reloads of changed rules: success, or error in any file.
# TYPE ratelimitd_rule_reloads_total counter
ratelimitd_rule_reloads_total{result="error"} 1
ratelimitd_rule_reloads_total{result="success"} 1
# HELP ratelimitd_rules Active rules.
# TYPE ratelimitd_rules gauge
ratelimitd_rules 2
# HELP ratelimitd_xds_connected 1 while a stream to the xDS server is open.
# TYPE ratelimitd_xds_connected gauge
ratelimitd_xds_connected 1
`), "ratelimitd_rule_file_state", "ratelimitd_rule_reloads_total", "ratelimitd_rules", "ratelimitd_xds_connected"); err != nil {
		t.Error(err)
	}

	server.set("3", perDay("one", "a", "k", 7), perDay("two", "b", "k", 1))
	c.inForce("a.k 7/day", "b.k 1/day")
	server.acked("3")
	if got := c.state("two"); got.State != descriptor.FileLoaded || len(got.Errors) > 0 {
		t.Errorf("after the mending: %+v", got)
	}
	var stats strings.Builder
	c.WriteStats(&stats)
	c.Statistics(func(path, stat string, n uint64) { fmt.Fprintf(&stats, "%s.%s: %d\n", path, stat, n) })
	for _, want := range []string{"config_load_error: 1\n", "config_load_success: 2\n", "xds.connected: 1\n", "xds.responses_accepted: 2\n", "xds.streams: 1\n"} {
		if !strings.Contains(stats.String(), want) {
			t.Errorf("statistics without %q:\n%s", want, stats.String())
		}
	}
}

// If the first set is rejected, the server gets the rejection immediately. It names a resource that cannot be decoded.
func TestAFirstBadSet(t *testing.T) {
	server := newControl(t, "")
	bad := &emptypb.Empty{}
	bad.ProtoReflect().SetUnknown([]byte{0x0a, 0x7f})
	server.set("1", bad)
	c := run(t, impatient(server.addr))
	await(t, "a rejection", func() bool { return len(server.nacks()) > 0 })
	if n := server.nacks()[0]; n.GetVersionInfo() != "" || !strings.Contains(n.GetErrorDetail().GetMessage(), "resource 1: cannot be decoded") {
		t.Errorf("rejection: %v", n)
	}
	if log := c.log.String(); !strings.Contains(log, "rules rejected, and no rules are active: requests are answered with UNAVAILABLE") || strings.Contains(log, "stay") {
		t.Error("the log does not say that no rules are in force")
	}
	if c.tree() != nil || c.applied() != 1 || c.state("resource 1").State != descriptor.FileRejected {
		t.Errorf("in force: %v; %+v", c.tree(), c.Files())
	}
	server.set("2", perDay("one", "a", "k", 5))
	c.inForce("a.k 5/day")
}

// One domain belongs to one resource, unless domains are merged.
func TestADomainTwice(t *testing.T) {
	for _, merge := range []bool{false, true} {
		server := newControl(t, "")
		server.set("1", perDay("one", "a", "k", 5), perDay("two", "a", "j", 6))
		o := impatient(server.addr)
		o.MergeDomains = merge
		c := run(t, o)
		if merge {
			c.inForce("a.k 5/day", "a.j 6/day")
			continue
		}
		await(t, "a rejection", func() bool { return len(server.nacks()) > 0 })
		if got := server.nacks()[0].GetErrorDetail().GetMessage(); !strings.HasPrefix(got, `two: domain: duplicate domain "a": it is already defined at one: domain`) {
			t.Errorf("rejected with %q", got)
		}
	}
}

// When the server is reachable again, the client sends a first request again: the server's versions may count from one
// again.
func TestTheServerRestarts(t *testing.T) {
	server := newControl(t, "")
	server.set("1", perDay("one", "a", "k", 5))
	c := run(t, impatient(server.addr))
	server.acked("1")
	server.grpc.Stop()
	await(t, "the end to be noticed", func() bool { return !c.metrics.connected.Load() })
	c.inForce("a.k 5/day")

	again := newControl(t, server.addr)
	again.set("1", perDay("one", "a", "k", 9))
	c.inForce("a.k 9/day")
	again.acked("1")
	first := again.seen()[0]
	if first.GetVersionInfo() != "" || first.GetResponseNonce() != "" || first.GetNode().GetId() != nodeID {
		t.Errorf("the first request on the new stream: %v", first)
	}
	if log := c.log.String(); !strings.Contains(log, "the stream from the xDS server has ended") || !strings.Contains(log, "server="+server.addr) {
		t.Error("the end is not in the log")
	}
	if got := c.metrics.streams.Load(); got != 2 {
		t.Errorf("%d streams", got)
	}
}

// The server may start later, and have no rules at first.
func TestTheServerComesLater(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed immediately
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c := run(t, impatient(addr))
	await(t, "a failure", func() bool { return strings.Contains(c.log.String(), "cannot connect to the xDS server") })
	if log := c.log.String(); !strings.Contains(log, "connection refused") || !strings.Contains(log, "cannot connect to the xDS server, no rules are active") {
		t.Error("the reason is not in the log")
	}
	server := newControl(t, addr)
	await(t, "a request", func() bool { return len(server.seen()) > 0 })
	server.set("1")
	c.inForce()
	if got := strings.Count(c.log.String(), "cannot connect to the xDS server"); got != 1 {
		t.Errorf("one reason is logged %d times", got)
	}
}

// If a server rejects the stream itself, the client does not retry without pause.
func TestTheStreamIsRejected(t *testing.T) {
	server := grpc.NewServer()                 // has no service
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	c := run(t, impatient(l.Addr().String()))
	await(t, "several attempts", func() bool { return c.metrics.streams.Load() >= 3 })
	if log := c.log.String(); !strings.Contains(log, "Unimplemented: unknown service") {
		t.Error("the reason is not in the log")
	}
}

// scripted is a server that sends given responses and ignores the client's answers.
type scripted struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	send     chan *discoveryv3.DiscoveryResponse
	requests chan *discoveryv3.DiscoveryRequest
}

func newScripted(t *testing.T) (*scripted, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{send: make(chan *discoveryv3.DiscoveryResponse, 10), requests: make(chan *discoveryv3.DiscoveryRequest, 1000)}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return s, l.Addr().String()
}

func (s *scripted) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			s.requests <- r
		}
	}()
	for {
		select {
		case r := <-s.send:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *scripted) next(t *testing.T) *discoveryv3.DiscoveryRequest {
	t.Helper()
	select {
	case r := <-s.requests:
		return r
	case <-time.After(patience):
		t.Fatalf("no request within %s", patience)
		return nil
	}
}

func response(t *testing.T, version, nonce string, all ...*ratelimitv3.RateLimitConfig) *discoveryv3.DiscoveryResponse {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{VersionInfo: version, Nonce: nonce, TypeUrl: typeURL}
	for _, x := range all {
		packed, err := anypb.New(x)
		if err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, packed)
	}
	return r
}

// While a rejection is being held back, newer rules take effect immediately, and the old rejection is never sent.
func TestNewerRulesReplaceAWaitingRejection(t *testing.T) {
	server, addr := newScripted(t)
	o := impatient(addr)
	o.RejectedRetry, o.RejectedRetryMax = time.Hour, time.Hour
	c := run(t, o)
	server.next(t)
	server.send <- response(t, "1", "n1", &ratelimitv3.RateLimitConfig{Name: "bad"})
	if r := server.next(t); r.GetResponseNonce() != "n1" || r.GetErrorDetail() == nil {
		t.Fatalf("not rejected at once: %v", r)
	}
	server.send <- response(t, "1", "n2", &ratelimitv3.RateLimitConfig{Name: "bad"})
	await(t, "the same again", func() bool { return c.metrics.rejected.Load() == 2 })
	server.send <- &discoveryv3.DiscoveryResponse{VersionInfo: "9", Nonce: "x", TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
	server.send <- response(t, "2", "n3", perDay("one", "a", "k", 5))
	if r := server.next(t); r.GetVersionInfo() != "2" || r.GetResponseNonce() != "n3" || r.GetErrorDetail() != nil {
		t.Errorf("after good rules came: %v", r)
	}
	c.inForce("a.k 5/day")
	if !strings.Contains(c.log.String(), "resources of another type") {
		t.Error("another type of resource is not in the log")
	}

	// The active rules come again in a wrapper, together with others.
	wrapped, err := anypb.New(&discoveryv3.Resource{Name: "outer", Resource: response(t, "", "", perDay("inner", "b", "k", 1)).GetResources()[0]})
	if err != nil {
		t.Fatal(err)
	}
	both := response(t, "3", "n4", perDay("one", "a", "k", 5))
	both.Resources = append(both.Resources, wrapped)
	server.send <- both
	c.inForce("a.k 5/day", "b.k 1/day")
	if c.state("outer").State != descriptor.FileLoaded {
		t.Errorf("%+v", c.Files())
	}
}

// A set of rules that is larger than MaxMessageBytes ends the stream. The rules of the previous set stay active, and
// the log names the setting to raise.
func TestAHugeSet(t *testing.T) {
	huge := perDay("one", "a", "k", 5)
	for i := range 500 {
		huge.Descriptors = append(huge.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "k", Value: strings.Repeat("v", 10_000+i),
			RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_SECOND, RequestsPerUnit: 1},
		})
	}
	server := newControl(t, "")
	server.set("1", perDay("one", "a", "k", 5))
	o := impatient(server.addr)
	o.MaxMessageBytes = 4 << 20
	c := run(t, o)
	server.acked("1")
	server.set("2", huge)
	await(t, "the bound", func() bool { return strings.Contains(c.log.String(), "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES") })
	c.inForce("a.k 5/day")

	large := run(t, impatient(server.addr)) // the default allows a set as large as a rule file
	await(t, "501 rules", func() bool { return large.tree() != nil && len(large.tree().Rules) == 501 })
}

// A hanging server is noticed because it is silent, although its machine still answers.
func TestAServerThatHangsIsNoticed(t *testing.T) {
	t.Parallel()
	server := newControl(t, "")
	server.set("1", perDay("one", "a", "k", 5))
	between := newValve(t, server.addr)
	o := impatient(between.addr)
	o.pingEvery, o.pingTimeout = 10*time.Second, 500*time.Millisecond // gRPC accepts no shorter ones
	c := run(t, o)
	server.acked("1")
	between.close()
	await(t, "the silence to be noticed", func() bool { return !c.metrics.connected.Load() })
	between.open()
	server.set("2", perDay("one", "a", "k", 6))
	c.inForce("a.k 6/day")
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for want, o := range map[string]Options{
		"no server":                       {},
		"write host:port without http://": {Server: "http://x:1"},
		"an @ in it: write host:port":     {Server: "http://u:secret@x:1"},
		"connect retry interval -1s":      {Server: "x:1", ConnectRetry: -time.Second},
		"from 0 to 1":                     {Server: "x:1", Backoff: Backoff{Factor: 2}},
		"largest message -1":              {Server: "x:1", MaxMessageBytes: -1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// A server sends sets as fast as it can. The client uses some of them, and the last one; its log stays short.
func TestAFloodOfSets(t *testing.T) {
	server, addr := newScripted(t)
	c := run(t, impatient(addr))
	server.next(t) // the subscription
	const sets = 3000
	start := time.Now()
	for i := range sets {
		packed, err := anypb.New(perDay("one", "a", "k", uint32(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		server.send <- &discoveryv3.DiscoveryResponse{VersionInfo: fmt.Sprint(i), Nonce: fmt.Sprint(i), TypeUrl: typeURL, Resources: []*anypb.Any{packed}}
	}
	c.inForce(fmt.Sprintf("a.k %d/day", sets))
	most := int(time.Since(start)/leastPause) + 2
	if n := c.applied(); n > most {
		t.Errorf("%d sets were used in %s, want at most %d", n, time.Since(start), most)
	}
	for {
		r := server.next(t)
		if r.GetErrorDetail() != nil {
			t.Fatalf("rejected: %v", r)
		}
		if r.GetResponseNonce() == fmt.Sprint(sets-1) {
			if r.GetVersionInfo() != fmt.Sprint(sets-1) {
				t.Errorf("the last set is answered with %v", r)
			}
			break
		}
	}
	if n := strings.Count(c.log.String(), "rules accepted"); n > most {
		t.Errorf("%d records about rules", n)
	}
}

// Many bad resources in one set are a few records.
func TestManyBadResources(t *testing.T) {
	server, addr := newScripted(t)
	c := run(t, impatient(addr))
	server.next(t)
	packed, err := anypb.New(perDay("one", "a", "k", 1))
	if err != nil {
		t.Fatal(err)
	}
	r := &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: typeURL}
	for range 2000 {
		r.Resources = append(r.Resources, packed)
	}
	server.send <- r
	if n := server.next(t); n.GetErrorDetail() == nil || len(n.GetErrorDetail().GetMessage()) > 32<<10 {
		t.Errorf("%d bytes in the rejection", len(n.GetErrorDetail().GetMessage()))
	}
	c.inForce("a.k 1/day")
	if n := strings.Count(c.log.String(), "rule resource rejected"); n > 20 || !strings.Contains(c.log.String(), "more rule resources rejected") {
		t.Errorf("%d records about bad resources", n)
	}
}
