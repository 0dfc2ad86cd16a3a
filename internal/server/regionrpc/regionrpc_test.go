package regionrpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the longest wait for an expected event.
const patience = time.Minute

// uri is the alternative name of a region's certificate.
func uri(name string) string { return "spiffe://example.org/region/" + name }

// filesOf loads the certificate of a region. It changes with the volume and a Reload.
func filesOf(t *testing.T, ca *tlstest.Authority, names ...string) (*tlsfiles.Files, *tlstest.Volume) {
	t.Helper()
	pair := ca.Issue(t, names...)
	v := tlstest.NewVolume(t, map[string][]byte{"cert": pair.Cert, "key": pair.Key, "ca": ca.PEM})
	f, err := tlsfiles.Load(tlsfiles.Options{
		Use: "regions", Cert: v.Path("cert"), Key: v.Path("key"), CA: v.Path("ca"), OnlyCA: true, SkipName: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, v
}

// answers is the Answerer of a test.
type answers func(ctx context.Context, from string, q *regions.Query, done func(*regions.Answer))

func (a answers) State() regions.State { return regions.State{Sum: 1 << 60, Rules: 7} }

func (a answers) Answer(ctx context.Context, from string, q *regions.Query, done func(*regions.Answer)) {
	a(ctx, from, q, done)
}

// used answers each take with the hits that it asked for.
func used(_ context.Context, _ string, q *regions.Query, done func(*regions.Answer)) { done(usedOf(q)) }

func usedOf(q *regions.Query) *regions.Answer {
	a := &regions.Answer{Outcomes: make([]backend.Outcome, len(q.Takes)), Limits: make([]*descriptor.Limit, len(q.Takes))}
	for i := range q.Takes {
		a.Outcomes[i] = backend.Outcome{Allowed: true, Used: q.Takes[i].Hits}
	}
	return a
}

// asked sends queries, and returns the answers in order. An error is that of Ask.
func asked(t *testing.T, p *Peers, queries ...regions.Query) ([]*regions.Answer, error) {
	t.Helper()
	all := make([]*regions.Answer, len(queries))
	err := p.Ask(waiting(t), "eu", queries, func(regions.State) {}, func(i int, a *regions.Answer) { all[i] = a })
	return all, err
}

// serve runs the server of region eu, whose list is ap, eu and us, until the test ends or stop is called.
func serve(t *testing.T, files *tlsfiles.Files, address string, store answers) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewServer(ServerOptions{
		Listener: l, TLS: files, Region: "eu", Regions: []string{"ap", "eu", "us"}, Store: store, handshake: 2 * patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// dial returns Peers for region eu at this address.
func dial(t *testing.T, files *tlsfiles.Files, address string, log *slog.Logger) *Peers {
	t.Helper()
	p, err := NewPeers(Options{Addresses: map[string]string{"eu": address}, TLS: files, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func ask(key string, hits int64) regions.Query {
	return regions.Query{
		Domain: "d", Descriptors: [][]descriptor.Entry{{{Key: "k", Value: key}}}, Takes: []regions.Take{{Limit: "f60", Hits: hits}},
	}
}

func waiting(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Queries and answers arrive as they were sent.
func TestMessages(t *testing.T) {
	i64, counts, spans, text := rapid.Int64Range(-1<<60, 1<<60), rapid.Int64Range(0, backend.MaxCount), rapid.Int64Range(0, 1<<50), rapid.String()
	entry := rapid.Custom(func(t *rapid.T) descriptor.Entry {
		return descriptor.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")}
	})
	take := rapid.Custom(func(t *rapid.T) regions.Take {
		return regions.Take{
			Descriptor: rapid.IntRange(0, 3).Draw(t, "descriptor"), Limit: text.Draw(t, "limit"), Hits: i64.Draw(t, "hits"),
			Vote: backend.Vote(rapid.IntRange(0, 2).Draw(t, "vote")), CountDenied: rapid.Bool().Draw(t, "count"), Settled: rapid.Bool().Draw(t, "settled"),
			Guards: rapid.Bool().Draw(t, "guards"), Shadow: rapid.Bool().Draw(t, "shadow"), Ends: i64.Draw(t, "ends"), Commits: rapid.Bool().Draw(t, "commits"),
		}
	})
	outcome := rapid.Custom(func(t *rapid.T) backend.Outcome {
		if rapid.Bool().Draw(t, "failed") {
			return backend.Outcome{Failed: true}
		}
		o := backend.Outcome{
			Allowed: rapid.Bool().Draw(t, "allowed"), Before: counts.Draw(t, "before"), Used: counts.Draw(t, "used"), Kept: counts.Draw(t, "kept"),
			RetryAfter: span(spans.Draw(t, "retry")), MoreAfter: span(spans.Draw(t, "more")), ResetAfter: span(spans.Draw(t, "reset")),
			PartEnds: span(spans.Draw(t, "part")), Delay: span(spans.Draw(t, "delay")),
		}
		if rapid.Bool().Draw(t, "never") {
			o.RetryAfter = backend.Never
		}
		return o
	})
	rapid.Check(t, func(t *rapid.T) {
		query := regions.Query{
			Domain: text.Draw(t, "domain"), Together: rapid.Bool().Draw(t, "together"), PeekWhenKnown: rapid.Bool().Draw(t, "peek"), Look: rapid.Bool().Draw(t, "look"),
			Descriptors: rapid.SliceOfN(rapid.SliceOfN(entry, 1, 4), 1, 3).Draw(t, "descriptors"), Takes: rapid.SliceOfN(take, 1, 4).Draw(t, "takes"),
		}
		b, err := proto.Marshal(encodeQuery(&query))
		if err != nil {
			t.Fatal(err)
		}
		var m regionv1.Query
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		got, ok := decodeQuery(&m)
		if diff := cmp.Diff(&query, got); !ok || diff != "" {
			t.Fatalf("%t (-want +got):\n%s", ok, diff)
		}
		rejections := []regions.Rejection{regions.NotRejected, regions.NoRule, regions.Unavailable, regions.Invalid}
		answer := regions.Answer{Rejected: rapid.SampledFrom(rejections).Draw(t, "rejected"), Home: rapid.SampledFrom([]string{"", "us"}).Draw(t, "home"), Outcomes: rapid.SliceOfN(outcome, 1, 4).Draw(t, "outcomes")}
		answer.Limits = make([]*descriptor.Limit, len(answer.Outcomes))
		for i := range answer.Limits {
			if !answer.Outcomes[i].Failed && rapid.Bool().Draw(t, "limited") {
				answer.Limits[i] = &descriptor.Limit{
					Requests: rapid.Uint64Range(0, descriptor.MaxRequests).Draw(t, "requests"), Burst: rapid.Uint64Range(0, descriptor.MaxRequests).Draw(t, "burst"), Algorithm: descriptor.Algorithm(rapid.IntRange(0, 7).Draw(t, "algorithm")),
					Window: descriptor.Window{Unit: descriptor.Unit(rapid.IntRange(0, 8).Draw(t, "unit")), Multiplier: rapid.Uint32().Draw(t, "multiplier")},
				}
			}
		}
		if b, err = proto.Marshal(encodeAnswer(9, &answer)); err != nil {
			t.Fatal(err)
		}
		var n regionv1.Answer
		if err := proto.Unmarshal(b, &n); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&answer, decodeAnswer(&n)); diff != "" || n.GetQuery() != 9 {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// Impossible numbers of a region are clamped.
func TestHostileAnswer(t *testing.T) {
	for _, n := range []int64{math.MinInt64, -2, math.MaxInt64} {
		m := &regionv1.Answer{Outcomes: []*regionv1.Outcome{{
			Before: n, Used: n, Kept: n, RetryAfter: n, MoreAfter: n, ResetAfter: n, PartEnds: n, Delay: n, Limit: &regionv1.Limit{Requests: math.MaxUint64, Unit: 1},
		}}}
		a := decodeAnswer(m)
		o := a.Outcomes[0]
		for _, d := range []time.Duration{o.RetryAfter, o.MoreAfter, o.ResetAfter, o.PartEnds, o.Delay} {
			if d < 0 || d > 250*365*24*time.Hour {
				t.Errorf("%d: a time of %v", n, d)
			}
		}
		if o.Before < 0 || o.Used < 0 || o.Kept < 0 || o.Used+o.Kept > 2*backend.MaxCount || a.Limits[0] != nil {
			t.Errorf("%d: %+v", n, a)
		}
	}
}

func TestAsk(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	var heard []regions.Query
	var from string
	at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, who string, q *regions.Query, done func(*regions.Answer)) {
		from, heard = who, append(heard, *q)
		used(ctx, who, q, done)
	})
	p := dial(t, ours, at, nil)
	many := make([]regions.Query, 2500) // more than fit into one call
	for i := range many {
		many[i] = ask(fmt.Sprint("v", i), int64(i))
	}
	answers, err := asked(t, p, many...)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a == nil || a.Outcomes[0].Used != int64(i) {
			t.Fatalf("answer %d: %+v", i, a)
		}
	}
	if diff := cmp.Diff(many, heard); from != "us" || diff != "" {
		t.Errorf("%s asked (-want +got):\n%s", from, diff)
	}
	if err := p.Ask(waiting(t), "xx", many[:1], nil, nil); err == nil || !strings.Contains(err.Error(), `region "xx" is not among the configured ones`) {
		t.Error(err)
	}
	var state regions.State // without a query, too
	if err := p.Ask(waiting(t), "eu", nil, func(s regions.State) { state = s }, nil); err != nil || state != (regions.State{Sum: 1 << 60, Rules: 7, Replicas: 1}) {
		t.Errorf("%+v, %v", state, err)
	}
}

// A slow counter does not delay the answers about others, and its query is given up.
func TestSlowCounter(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	others := make(chan struct{})
	at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, who string, q *regions.Query, done func(*regions.Answer)) {
		if q.Descriptors[0][0].Value != "slow" {
			used(ctx, who, q, done)
			return
		}
		go func() {
			<-others
			<-ctx.Done()
			done(&regions.Answer{Outcomes: []backend.Outcome{{Failed: true}}, Limits: make([]*descriptor.Limit, 1), Rejected: regions.Unavailable})
		}()
	})
	var order []int
	err := dial(t, ours, at, nil).Ask(waiting(t), "eu", []regions.Query{ask("slow", 1), ask("a", 1), ask("b", 1)}, func(regions.State) {}, func(i int, a *regions.Answer) {
		if order = append(order, i); len(order) == 2 {
			close(others)
		}
		if a.Outcomes[0].Failed != (i == 0) {
			t.Errorf("answer %d: %+v", i, a)
		}
	})
	if err != nil || len(order) != 3 || order[2] != 0 {
		t.Errorf("answers in the order %v, %v", order, err)
	}
}

// The connections to a replica that has stopped, without closing them, are closed after a second.
func TestSilence(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	release, arrived := make(chan struct{}), make(chan struct{}, 2)
	at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, who string, q *regions.Query, done func(*regions.Answer)) {
		if q.Descriptors[0][0].Value == "stopped" {
			arrived <- struct{}{}
			<-release
		}
		used(ctx, who, q, done)
	})
	t.Cleanup(func() { close(release) })
	p := dial(t, ours, at, nil)
	for range 2 {
		go func() { // its answer arrives after the question
			<-arrived
			_, _ = asked(t, p, ask("b", 1))
		}()
		if _, err := asked(t, p, ask("stopped", 1)); status.Code(err) != codes.Unavailable {
			t.Errorf("%v", err)
		}
	}
	if _, err := asked(t, p, ask("a", 1)); err != nil {
		t.Error(err)
	}
}

// Who may ask whom. An empty text means that the query is answered. The server only logs the reason of a rejection.
func TestCertificates(t *testing.T) {
	ca, other := tlstest.NewAuthority(t, "regions"), tlstest.NewAuthority(t, "others")
	for _, c := range []struct {
		name           string
		server, client []string // alternative names
		from           *tlstest.Authority
		want           string
	}{
		{"another region of the list", []string{uri("eu")}, []string{uri("us")}, ca, ""},
		{"names that do not matter", []string{"localhost", uri("eu"), "spiffe://x/ns/a"}, []string{"10.0.0.1", "spiffe://other/region/ap", "https://x/region/us"}, ca, ""},
		{"a region that is not in the list", []string{uri("eu")}, []string{uri("sa")}, ca, "code = Unavailable"},
		{"the same region", []string{uri("eu")}, []string{uri("eu")}, ca, "code = Unavailable"},
		{"no region", []string{uri("eu")}, []string{"eu.example.org"}, ca, "code = Unavailable"},
		{"a path that only ends so", []string{uri("eu")}, []string{"spiffe://example.org/x/region/us"}, ca, "code = Unavailable"},
		{"two regions", []string{uri("eu")}, []string{uri("us"), uri("ap")}, ca, "code = Unavailable"},
		{"another authority", []string{uri("eu")}, []string{uri("us")}, other, "code = Unavailable"},
		{"the address of another region", []string{uri("ap")}, []string{uri("us")}, ca, "the certificate is of region ap: the address of region eu leads to a wrong place"},
		{"a server without a region", []string{"localhost"}, []string{uri("us")}, ca, "the certificate names no region"},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs, _ := filesOf(t, ca, c.server...)
			pair := c.from.Issue(t, c.client...)
			v := tlstest.NewVolume(t, map[string][]byte{"cert": pair.Cert, "key": pair.Key, "ca": ca.PEM})
			ours, err := tlsfiles.Load(tlsfiles.Options{Use: "regions", Cert: v.Path("cert"), Key: v.Path("key"), CA: v.Path("ca"), OnlyCA: true, SkipName: true})
			if err != nil {
				t.Fatal(err)
			}
			var answered atomic.Int64
			at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, from string, q *regions.Query, done func(*regions.Answer)) {
				answered.Add(1)
				used(ctx, from, q, done)
			})
			_, err = asked(t, dial(t, ours, at, nil), ask("a", 1))
			switch {
			case c.want == "":
				if err != nil || answered.Load() != 1 {
					t.Error(err, answered.Load())
				}
			case err == nil || answered.Load() > 0 || !strings.Contains(err.Error(), c.want):
				t.Errorf("the store was asked %d times\n got %v\nwant %s", answered.Load(), err, c.want)
			}
		})
	}
}

// raw returns a client for messages that Peers never sends.
func raw(t *testing.T, files *tlsfiles.Files, at string) regionv1.RegionServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(toRegion{files, "eu"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return regionv1.NewRegionServiceClient(conn)
}

func TestBadQueries(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	at, _ := serve(t, theirs, "127.0.0.1:0", used)
	client := raw(t, ours, at)
	good := ask("a", 5)
	with := func(change func(*regionv1.Query)) *regionv1.Query {
		m := encodeQuery(&good)
		change(m)
		return m
	}
	times := func(n int) (all []*regionv1.Query) {
		for range n {
			all = append(all, encodeQuery(&good))
		}
		return all
	}
	// call returns the answers by the index of their query.
	call := func(queries []*regionv1.Query, opts ...grpc.CallOption) (map[uint32]*regionv1.Answer, error) {
		stream, err := client.Ask(waiting(t), &regionv1.AskRequest{Queries: queries}, opts...)
		all := make(map[uint32]*regionv1.Answer)
		for err == nil {
			var some *regionv1.AskResponse
			if some, err = stream.Recv(); err == nil {
				for _, a := range some.GetAnswers() {
					all[a.GetQuery()] = a
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		return all, err
	}
	for _, c := range []struct {
		queries []*regionv1.Query
		code    codes.Code
		want    string
	}{
		{times(regions.MaxQueries), codes.OK, ""},
		{times(regions.MaxQueries + 1), codes.InvalidArgument, "1001 queries, 1000 are the most"},
		{[]*regionv1.Query{with(func(m *regionv1.Query) { m.Domain = strings.Repeat("x", maxMessage) })}, codes.ResourceExhausted, "larger than max"},
	} {
		if _, err := call(c.queries); status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("got %v, want %v: %s", err, c.code, c.want)
		}
	}
	// One bad query does not affect those around it.
	for i, m := range []*regionv1.Query{
		{},
		with(func(m *regionv1.Query) { m.Takes = nil }),
		with(func(m *regionv1.Query) { m.Takes = make([]*regionv1.Take, regions.MaxTakes+1) }),
		with(func(m *regionv1.Query) { m.Takes[0].Vote = 3 }),
		with(func(m *regionv1.Query) { m.Takes[0].Member = 1 << 31 }),
		with(func(m *regionv1.Query) { m.Descriptors = make([]*regionv1.Descriptor, regions.MaxTakes+1) }),
		with(func(m *regionv1.Query) { m.Descriptors[0].Entries = make([]*regionv1.Entry, maxEntries+1) }),
		with(func(m *regionv1.Query) { m.Domain = strings.Repeat("x", maxText+1) }),
		with(func(m *regionv1.Query) { m.Takes[0].Limit = strings.Repeat("x", maxText+1) }),
	} {
		all, err := call([]*regionv1.Query{encodeQuery(&good), m, encodeQuery(&good)})
		if err != nil || len(all) != 3 || all[0].GetOutcomes()[0].GetUsed() != 5 || all[1].GetRejected() != string(regions.Invalid) || all[2].GetOutcomes()[0].GetUsed() != 5 {
			t.Errorf("%d: %v, %v", i, all, err)
		}
	}
	p := dial(t, ours, at, nil)
	large := ask(strings.Repeat("x", maxText), 1)
	for _, queries := range [][]regions.Query{{good, large, good}, {large}} {
		answers, err := asked(t, p, queries...)
		if err != nil || answers[len(queries)/2].Rejected != regions.Invalid || len(queries) > 1 && answers[2].Outcomes[0].Used != 5 {
			t.Error(answers, err)
		}
	}
	// Queries that are together larger than a message are sent in several calls.
	half := ask(strings.Repeat("x", maxText/2), 1)
	if answers, err := asked(t, p, half, half, half, half, half, half, half, half, half, half); err != nil || answers[9] == nil {
		t.Error(answers, err)
	}
	// Headers are bounded.
	big := metadata.Pairs("x", strings.Repeat("x", maxHeaders))
	stream, err := client.Ask(metadata.NewOutgoingContext(waiting(t), big), &regionv1.AskRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("headers of %d bytes: %v", maxHeaders, err)
	}
}

// Unknown texts from another region are not kept, logged, or passed on to clients.
func TestTextsInAnswers(t *testing.T) {
	text := strings.Repeat("x", maxMessage/2)
	if a := decodeAnswer(&regionv1.Answer{Rejected: text, OtherHome: text}); a.Rejected != regions.Invalid || a.Home != "" {
		t.Errorf("rejected: %d bytes, home: %d bytes", len(a.Rejected), len(a.Home))
	}
}

// A panic fails only its own call.
func TestPanic(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, who string, q *regions.Query, done func(*regions.Answer)) {
		if q.Takes[0].Hits == 1 {
			panic("a defect")
		}
		used(ctx, who, q, done)
	})
	p := dial(t, ours, at, nil)
	if _, err := asked(t, p, ask("a", 1)); status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if _, err := asked(t, p, ask("a", 2)); err != nil {
		t.Error(err)
	}
}

// A region that uses all its connections, and a region that never reads, do not keep others from an answer.
func TestOthersAreAnswered(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	greedy, _ := filesOf(t, ca, uri("us"))
	modest, _ := filesOf(t, ca, uri("ap"))
	at, _ := serve(t, theirs, "127.0.0.1:0", used)
	config := toRegion{greedy, "eu"}.files.Client()
	config.NextProtos = []string{"h2"}
	open := 0
	for range maxConnections/2 + 20 {
		silent, err := tls.Dial("tcp", at, config)
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = silent.Close() })
		if _, err := silent.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err == nil {
			open++
		}
	}
	answers, err := asked(t, dial(t, modest, at, nil), ask("a", 3))
	if err != nil || answers[0].Outcomes[0].Used != 3 {
		t.Errorf("another region, beside %d connections: %v %v", open, answers, err)
	}
	if _, err := asked(t, dial(t, greedy, at, nil), ask("a", 3)); status.Code(err) != codes.Unavailable {
		t.Errorf("one connection too many of the same region: %v", err)
	}
}

// While the queries of a region have no answer, no more of them are carried out, and other regions are answered.
func TestWorkOfARegion(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	greedy, _ := filesOf(t, ca, uri("us"))
	modest, _ := filesOf(t, ca, uri("ap"))
	entered, release := make(chan struct{}, 100), make(chan struct{})
	at, _ := serve(t, theirs, "127.0.0.1:0", func(ctx context.Context, who string, q *regions.Query, done func(*regions.Answer)) {
		if who == "us" {
			entered <- struct{}{}
			<-release
		}
		used(ctx, who, q, done)
	})
	client := raw(t, greedy, at)
	large := ask(strings.Repeat("x", maxText-1000), 1)
	m := &regionv1.AskRequest{Queries: []*regionv1.Query{encodeQuery(&large), encodeQuery(&large), encodeQuery(&large)}}
	calls := maxWork / proto.Size(m)
	var ended sync.WaitGroup
	call := func() error {
		stream, err := client.Ask(waiting(t), m)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for range calls {
		ended.Go(func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		})
		<-entered
	}
	if err := call(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "region us") {
		t.Errorf("one call too many: %v", err)
	}
	if _, err := asked(t, dial(t, modest, at, nil), ask("a", 1)); err != nil {
		t.Errorf("another region: %v", err)
	}
	close(release)
	ended.Wait()
	if err := call(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// gauges collects the metrics of Peers.
type gauges struct{ all []metric.Family }

func (g *gauges) Register(f ...metric.Family) { g.all = append(g.all, f...) }

func (g *gauges) level(name string) (value float64) {
	for _, f := range g.all {
		if f.Name == name && f.Levels != nil {
			f.Levels(func(v float64, _ ...string) { value = v })
		}
	}
	return value
}

// locked is a buffer for several goroutines.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A region that was gone answers again, even with a certificate of another authority if both sides have it by then.
func TestReconnects(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, theirVolume := filesOf(t, ca, uri("eu"))
	ours, ourVolume := filesOf(t, ca, uri("us"))
	at, stop := serve(t, theirs, "127.0.0.1:0", used)
	var log locked
	var metrics gauges
	p, err := NewPeers(Options{Addresses: map[string]string{"eu": at}, TLS: ours, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: &metrics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	up := func() float64 { return metrics.level("ratelimitd_region_up") }
	if up() != 0 {
		t.Error("up before the first call")
	}
	if _, err := asked(t, p, ask("a", 1)); err != nil || up() != 1 {
		t.Fatal(up(), err)
	}
	stop()
	if _, err := asked(t, p, ask("a", 1)); status.Code(err) != codes.Unavailable || up() != 0 {
		t.Fatal(up(), err)
	}

	next := tlstest.NewAuthority(t, "next")
	for _, v := range []struct {
		volume *tlstest.Volume
		files  *tlsfiles.Files
		name   string
	}{{theirVolume, theirs, "eu"}, {ourVolume, ours, "us"}} {
		pair := next.Issue(t, uri(v.name))
		v.volume.Swap(t, map[string][]byte{"cert": pair.Cert, "key": pair.Key, "ca": next.PEM})
		v.files.Reload()
	}
	serve(t, theirs, at, used)
	ctx := waiting(t)
	for {
		_, err := asked(t, p, ask("a", 1))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if up() != 1 {
		t.Error(up())
	}
	if text := log.String(); strings.Count(text, "a region does not answer") != 1 || strings.Count(text, "a region answers again") != 1 {
		t.Errorf("the log does not say once that the region is gone, and once that it is back:\n%s", text)
	}
}

func TestServerNeedsCertificates(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	_, v := filesOf(t, ca, uri("eu"))
	files, err := tlsfiles.Load(tlsfiles.Options{Use: "regions", CA: v.Path("ca")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(ServerOptions{TLS: files}); err == nil || !strings.Contains(err.Error(), "needs a certificate and a key") {
		t.Error(err)
	}
	// A client without a certificate is rejected before its query.
	theirs, _ := filesOf(t, ca, uri("eu"))
	at, _ := serve(t, theirs, "127.0.0.1:0", used)
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := regionv1.NewRegionServiceClient(conn).Ask(waiting(t), &regionv1.AskRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
}
