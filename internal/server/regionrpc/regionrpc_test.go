package regionrpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// uri is the alternative name of a region's certificate.
func uri(name string) string { return "spiffe://example.org/region/" + name }

// filesOf loads the certificate of a region. They change with the volume and a Reload.
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

// answers is what a server of a test answers with.
type answers struct {
	answer  func(ctx context.Context, from string, epoch uint64, queries []regions.Query) ([]regions.Reply, error)
	consent func(from string, e *region.Epoch) (bool, error)
}

func (a answers) Answer(ctx context.Context, from string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	return a.answer(ctx, from, epoch, queries)
}

func (a answers) Consent(_ context.Context, from string, e *region.Epoch) (bool, error) {
	return a.consent(from, e)
}

// used answers each take with the hits that it asked for.
func used(_ context.Context, _ string, _ uint64, queries []regions.Query) ([]regions.Reply, error) {
	replies := make([]regions.Reply, len(queries))
	for i := range replies {
		replies[i].Outcome = &backend.Outcome{Allowed: true, Used: queries[i].Hits}
	}
	return replies, nil
}

// serve runs the server of region eu, whose list is ap, eu and us, until the test ends or stop is called.
func serve(t *testing.T, files *tlsfiles.Files, address string, store Answerer) (at string, stop func()) {
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

// dial makes Peers that know region eu at an address.
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
	return regions.Query{Domain: "d", Entries: []descriptor.Entry{{Key: "k", Value: key}}, Limit: "f60", Hits: hits}
}

func waiting(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Whatever is asked and answered arrives as it was sent.
func TestMessages(t *testing.T) {
	draw := func(t *rapid.T) (regions.Query, regions.Reply) {
		i64, u64 := rapid.Int64Range(-1<<60, 1<<60), rapid.Uint64()
		span := rapid.Int64Range(0, 1<<50)
		a := regions.Query{
			Domain: rapid.String().Draw(t, "domain"), Limit: rapid.String().Draw(t, "limit"),
			Entries: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) descriptor.Entry {
				return descriptor.Entry{Key: rapid.String().Draw(t, "key"), Value: rapid.String().Draw(t, "value")}
			}), 1, 4).Draw(t, "entries"),
		}
		result := region.Result(rapid.IntRange(0, int(region.Stale)).Draw(t, "result"))
		refused := rapid.Bool().Draw(t, "refused")
		var reply regions.Reply
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			a.Hits = rapid.Int64Range(-backend.MaxHits, backend.MaxHits).Draw(t, "hits")
			reply.Outcome = &backend.Outcome{
				Allowed: rapid.Bool().Draw(t, "allowed"), Before: i64.Draw(t, "before"), Used: i64.Draw(t, "used"), RetryAfter: micros(span.Draw(t, "retry")),
				MoreAfter: micros(span.Draw(t, "more")), ResetAfter: micros(span.Draw(t, "reset")), Delay: micros(span.Draw(t, "delay")),
			}
			if rapid.Bool().Draw(t, "never") {
				reply.Outcome.RetryAfter = backend.Never
			}
		case 1:
			a.Permits = &region.Question{
				Region: "us", Epoch: 7, Incarnation: u64.Draw(t, "incarnation"), Number: u64.Draw(t, "number"), Nonce: u64.Draw(t, "nonce"),
				Want: i64.Draw(t, "want"), Need: i64.Draw(t, "need"),
				Grants: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) region.Grant {
					return region.Grant{
						Incarnation: u64.Draw(t, "i"), Number: u64.Draw(t, "n"), Permits: i64.Draw(t, "p"), Used: i64.Draw(t, "u"), Returned: i64.Draw(t, "r"),
						Charged: i64.Draw(t, "c"), Ends: i64.Draw(t, "e"), Expires: i64.Draw(t, "x"),
					}
				}), 0, 8).Draw(t, "grants"),
			}
			if len(a.Permits.Grants) == 0 {
				a.Permits.Grants = nil
			}
			reply.Permits = &region.Answer{
				Epoch: u64.Draw(t, "e"), Incarnation: u64.Draw(t, "i"), Number: u64.Draw(t, "n"), Nonce: u64.Draw(t, "o"), Result: result, Limit: u64.Draw(t, "l"),
				Permits: i64.Draw(t, "p"), Charged: i64.Draw(t, "c"), Ends: i64.Draw(t, "s"), ValidFor: i64.Draw(t, "v"), Remaining: i64.Draw(t, "r"), RetryAfter: i64.Draw(t, "a"),
				Rules: u64.Draw(t, "rules"),
			}
		default:
			a.Share = &region.ShareQuestion{
				Region: "us", Epoch: 7, Incarnation: u64.Draw(t, "i"), Number: u64.Draw(t, "n"), Nonce: u64.Draw(t, "o"), Held: i64.Draw(t, "h"), Demand: i64.Draw(t, "d"), Returned: i64.Draw(t, "back"),
			}
			reply.Share = &region.ShareAnswer{
				Epoch: u64.Draw(t, "e"), Incarnation: u64.Draw(t, "i"), Number: u64.Draw(t, "n"), Nonce: u64.Draw(t, "o"), Result: result,
				Rate: i64.Draw(t, "r"), Tokens: i64.Draw(t, "t"), Mint: i64.Draw(t, "m"), ValidFor: i64.Draw(t, "v"),
			}
		}
		if refused {
			reply = regions.Reply{Refused: regions.NoRule}
		}
		return a, reply
	}
	rapid.Check(t, func(t *rapid.T) {
		query, reply := draw(t)
		b, err := proto.Marshal(encodeQuery(&query))
		if err != nil {
			t.Fatal(err)
		}
		var m regionv1.Query
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		gotQuery, ok := decodeQuery(&m, "us", 7)
		if diff := cmp.Diff(query, gotQuery); !ok || diff != "" {
			t.Fatalf("%t (-want +got):\n%s", ok, diff)
		}
		if b, err = proto.Marshal(encodeReply(&reply)); err != nil {
			t.Fatal(err)
		}
		var answer regionv1.Reply
		if err := proto.Unmarshal(b, &answer); err != nil {
			t.Fatal(err)
		}
		gotReply, err := decodeReply(&answer, &query)
		if diff := cmp.Diff(reply, gotReply); err != nil || diff != "" {
			t.Fatalf("%v (-want +got):\n%s", err, diff)
		}
	})
}

func TestExchangeAndConsent(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	var heard struct {
		from    string
		epoch   uint64
		queries []regions.Query
		lists   []region.Epoch
	}
	at, _ := serve(t, theirs, "127.0.0.1:0", answers{
		answer: func(ctx context.Context, from string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
			heard.from, heard.epoch, heard.queries = from, epoch, append(heard.queries, queries...)
			return used(ctx, from, epoch, queries)
		},
		consent: func(from string, e *region.Epoch) (bool, error) {
			heard.lists = append(heard.lists, *e)
			return e.Number > 7, nil
		},
	})
	p := dial(t, ours, at, nil)
	many := make([]regions.Query, 2500) // more than one call takes
	for i := range many {
		many[i] = ask(fmt.Sprint("v", i), int64(i))
	}
	replies, err := p.Exchange(waiting(t), "eu", 7, many)
	if err != nil || len(replies) != len(many) {
		t.Fatal(len(replies), err)
	}
	for i := range replies {
		if replies[i].Outcome.Used != int64(i) {
			t.Fatalf("answer %d is for question %d", i, replies[i].Outcome.Used)
		}
	}
	if diff := cmp.Diff(many, heard.queries); heard.from != "us" || heard.epoch != 7 || diff != "" {
		t.Errorf("%s asked in epoch %d (-want +got):\n%s", heard.from, heard.epoch, diff)
	}

	stays := region.Epoch{Number: 7, Home: "us", Regions: []string{"ap", "eu", "us"}}
	moves := region.Epoch{Number: 8, Home: "us", Regions: []string{"eu", "us"}, Before: []string{"ap", "eu", "us"}, Stopped: true}
	alone := region.Epoch{Number: 9, Home: "us", Regions: []string{"eu", "us"}, Before: []string{}}
	for _, c := range []struct {
		e    region.Epoch
		want bool
	}{{stays, false}, {moves, true}, {alone, true}} {
		if got, err := p.Consent(waiting(t), "eu", &c.e); err != nil || got != c.want {
			t.Errorf("epoch %d: consents %t, %v", c.e.Number, got, err)
		}
	}
	if diff := cmp.Diff([]region.Epoch{stays, moves, alone}, heard.lists); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := p.Exchange(waiting(t), "xx", 7, many[:1]); err == nil || !strings.Contains(err.Error(), `region "xx" is not among the configured ones`) {
		t.Error(err)
	}
}

// Who may ask whom. An empty text means that the question is answered.
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
		{"a region that is not in the list", []string{uri("eu")}, []string{uri("sa")}, ca, "region sa is not in the list of region eu: ap, eu, us"},
		{"the same region", []string{uri("eu")}, []string{uri("eu")}, ca, "region eu is this replica's own region"},
		{"no region", []string{uri("eu")}, []string{"eu.example.org"}, ca, "the certificate names no region: it needs the URI spiffe://TRUST-DOMAIN/region/NAME"},
		{"a path that only ends so", []string{uri("eu")}, []string{"spiffe://example.org/x/region/us"}, ca, "the certificate names no region"},
		{"two regions", []string{uri("eu")}, []string{uri("us"), uri("ap")}, ca, "the certificate names several regions, us and ap"},
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
			asked := 0
			at, _ := serve(t, theirs, "127.0.0.1:0", answers{
				answer: func(ctx context.Context, from string, epoch uint64, all []regions.Query) ([]regions.Reply, error) {
					asked++
					return used(ctx, from, epoch, all)
				},
				consent: func(string, *region.Epoch) (bool, error) { asked++; return true, nil },
			})
			p := dial(t, ours, at, nil)
			_, err = p.Exchange(waiting(t), "eu", 7, []regions.Query{ask("a", 1)})
			_, err2 := p.Consent(waiting(t), "eu", &region.Epoch{Number: 7, Home: "us"})
			if c.want == "" {
				if err != nil || err2 != nil || asked != 2 {
					t.Error(err, err2, asked)
				}
				return
			}
			if err == nil || err2 == nil || asked > 0 || !strings.Contains(err.Error(), c.want) || !strings.Contains(err2.Error(), c.want) {
				t.Errorf("the store was asked %d times\n got %v\n and %v\nwant %s", asked, err, err2, c.want)
			}
		})
	}
}

// raw makes a client that sends what Peers never would.
func raw(t *testing.T, files *tlsfiles.Files, at string) regionv1.RegionServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(toRegion{files, "eu"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return regionv1.NewRegionServiceClient(conn)
}

func TestBadQuestions(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	at, _ := serve(t, theirs, "127.0.0.1:0", answers{answer: used, consent: func(string, *region.Epoch) (bool, error) { return true, nil }})
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
	for _, c := range []struct {
		m    *regionv1.ExchangeRequest
		code codes.Code
		want string
	}{
		{&regionv1.ExchangeRequest{Epoch: 1, Queries: times(regions.MaxQueries)}, codes.OK, ""},
		{&regionv1.ExchangeRequest{Epoch: 1, Queries: times(regions.MaxQueries + 1)}, codes.InvalidArgument, "1001 questions, where there are from 1 to 1000"},
		{&regionv1.ExchangeRequest{Epoch: 1}, codes.InvalidArgument, "0 questions"},
		{&regionv1.ExchangeRequest{Queries: times(1)}, codes.InvalidArgument, "the epoch 0, where epochs are from 1"},
		{&regionv1.ExchangeRequest{Epoch: 1 << 63, Queries: times(1)}, codes.InvalidArgument, "the epoch 9223372036854775808"},
		{&regionv1.ExchangeRequest{Epoch: 1, Queries: []*regionv1.Query{with(func(m *regionv1.Query) { m.Domain = strings.Repeat("x", maxMessage) })}}, codes.ResourceExhausted, "larger than max"},
	} {
		_, err := client.Exchange(waiting(t), c.m)
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("got %v, want %v: %s", err, c.code, c.want)
		}
	}
	for _, c := range []struct {
		m    *regionv1.ConsentRequest
		want string
	}{
		{&regionv1.ConsentRequest{}, "the epoch 0"},
		{&regionv1.ConsentRequest{Epoch: math.MaxInt64 + 1}, "the epoch 9223372036854775808"},
		{&regionv1.ConsentRequest{Epoch: 1, Regions: []string{"EU"}}, `the region "EU": a name has letters from a to z`},
		{&regionv1.ConsentRequest{Epoch: 1, Moved: true, Before: []string{""}}, `the region ""`},
		{&regionv1.ConsentRequest{Epoch: 1, Regions: make([]string, maxRegions+1)}, "65 regions, 64 are the most"},
	} {
		_, err := client.Consent(waiting(t), c.m)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}

	// One bad question does not affect those around it.
	bad := []*regionv1.Query{
		with(func(m *regionv1.Query) { m.What = nil }),
		with(func(m *regionv1.Query) { m.Entries = nil }),
		with(func(m *regionv1.Query) { m.Entries = make([]*regionv1.Entry, maxEntries+1) }),
		with(func(m *regionv1.Query) { m.Domain = strings.Repeat("x", maxText+1) }),
		with(func(m *regionv1.Query) { m.What = &regionv1.Query_Hits{Hits: backend.MaxHits + 1} }),
		with(func(m *regionv1.Query) { m.What = &regionv1.Query_Hits{Hits: -backend.MaxHits - 1} }),
		with(func(m *regionv1.Query) {
			m.What = &regionv1.Query_Permits{Permits: &regionv1.Question{Grants: make([]*regionv1.Grant, maxGrants+1)}}
		}),
	}
	for i, m := range bad {
		answer, err := client.Exchange(waiting(t), &regionv1.ExchangeRequest{Epoch: 1, Queries: []*regionv1.Query{encodeQuery(&good), m, encodeQuery(&good)}})
		if err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		replies := answer.GetReplies()
		if replies[0].GetOutcome().GetUsed() != 5 || replies[1].GetRefused() != string(regions.Invalid) || replies[2].GetOutcome().GetUsed() != 5 {
			t.Errorf("%d: %v", i, replies)
		}
	}
	p := dial(t, ours, at, nil)
	large := ask(strings.Repeat("x", maxText), 1)
	replies, err := p.Exchange(waiting(t), "eu", 1, []regions.Query{good, large, good})
	if err != nil || replies[0].Outcome == nil || replies[1].Refused != regions.Invalid || replies[2].Outcome == nil {
		t.Error(replies, err)
	}
	if replies, err = p.Exchange(waiting(t), "eu", 1, []regions.Query{large}); err != nil || replies[0].Refused != regions.Invalid {
		t.Error(replies, err)
	}
	// Questions that are together larger than a message are asked in several calls.
	half := ask(strings.Repeat("x", maxText/2), 1)
	if replies, err = p.Exchange(waiting(t), "eu", 1, []regions.Query{half, half, half, half, half, half, half, half, half, half}); err != nil || replies[9].Outcome == nil {
		t.Error(len(replies), err)
	}
}

// A store that fails, and one that has no answer in time.
func TestFailures(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	var fail func(ctx context.Context) ([]regions.Reply, error)
	at, _ := serve(t, theirs, "127.0.0.1:0", answers{
		answer: func(ctx context.Context, _ string, _ uint64, _ []regions.Query) ([]regions.Reply, error) {
			return fail(ctx)
		},
	})
	p := dial(t, ours, at, nil)
	for _, c := range []struct {
		fail func(ctx context.Context) ([]regions.Reply, error)
		want string
	}{
		{func(context.Context) ([]regions.Reply, error) { return nil, errors.New("no Redis") }, "code = Unavailable desc = no Redis"},
		{func(context.Context) ([]regions.Reply, error) { return nil, nil }, "0 answers to 1 questions"},
		{func(context.Context) ([]regions.Reply, error) { return make([]regions.Reply, 1), nil }, "an answer of another kind than the question"},
		{func(context.Context) ([]regions.Reply, error) {
			return []regions.Reply{{Permits: &region.Answer{}}}, nil
		}, "an answer of another kind than the question"},
		{func(context.Context) ([]regions.Reply, error) { panic("a defect") }, "code = Internal desc = internal error"},
		{func(ctx context.Context) ([]regions.Reply, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "code = DeadlineExceeded"},
	} {
		fail = c.fail
		ctx := waiting(t)
		if strings.Contains(c.want, "Deadline") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
		}
		if _, err := p.Exchange(ctx, "eu", 1, []regions.Query{ask("a", 1)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// A region that has too many calls in flight, and one that connects and never reads, do not keep others from an answer.
func TestOthersAreAnswered(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	greedy, _ := filesOf(t, ca, uri("us"))
	modest, _ := filesOf(t, ca, uri("ap"))
	release := make(chan struct{})
	entered := make(chan struct{}, 2*maxCallsOfOne)
	at, _ := serve(t, theirs, "127.0.0.1:0", answers{
		answer: func(ctx context.Context, from string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
			if from == "us" {
				entered <- struct{}{}
				<-release
			}
			return used(ctx, from, epoch, queries)
		},
	})
	ctx := waiting(t)
	var calls sync.WaitGroup
	for range maxCallsOfOne / maxCalls {
		p := dial(t, greedy, at, nil)
		for range maxCalls {
			calls.Go(func() { _, _ = p.Exchange(ctx, "eu", 1, []regions.Query{ask("a", 1)}) })
		}
	}
	for range maxCallsOfOne {
		<-entered
	}
	one := dial(t, greedy, at, nil)
	if _, err := one.Exchange(ctx, "eu", 1, []regions.Query{ask("a", 1)}); status.Code(errors.Unwrap(err)) != codes.ResourceExhausted {
		t.Errorf("one call too many: %v", err)
	}

	config := toRegion{greedy, "eu"}.files.Client()
	config.NextProtos = []string{"h2"}
	silent, err := tls.Dial("tcp", at, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	if _, err := silent.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}

	replies, err := dial(t, modest, at, nil).Exchange(ctx, "eu", 1, []regions.Query{ask("a", 3)})
	if err != nil || replies[0].Outcome.Used != 3 {
		t.Errorf("another region: %v %v", replies, err)
	}
	close(release)
	calls.Wait()
}

// gauges collects what Peers report.
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

// A region that was gone answers again, including with a certificate of another authority if both sides have it by then.
func TestReconnects(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, theirVolume := filesOf(t, ca, uri("eu"))
	ours, ourVolume := filesOf(t, ca, uri("us"))
	store := answers{answer: used}
	at, stop := serve(t, theirs, "127.0.0.1:0", store)
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
	question := []regions.Query{ask("a", 1)}
	if _, err := p.Exchange(waiting(t), "eu", 1, question); err != nil || up() != 1 {
		t.Fatal(up(), err)
	}
	stop()
	if _, err := p.Exchange(waiting(t), "eu", 1, question); status.Code(errors.Unwrap(err)) != codes.Unavailable || up() != 0 {
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
	serve(t, theirs, at, store)
	ctx := waiting(t)
	for {
		_, err := p.Exchange(ctx, "eu", 1, question)
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
	// A client without a certificate is not even asked what it wants.
	theirs, _ := filesOf(t, ca, uri("eu"))
	at, _ := serve(t, theirs, "127.0.0.1:0", answers{answer: used})
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := regionv1.NewRegionServiceClient(conn).Exchange(waiting(t), &regionv1.ExchangeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
}
