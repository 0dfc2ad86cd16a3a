package operator

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// owners are tokens and whose they are: a name, or a name, a space and a role.
type owners map[string]string

func (o owners) Owner(token string) (name, role string, err error) {
	if o == nil {
		return "", "", errors.New("cannot read some file")
	}
	whose, known := o[token]
	if !known {
		return "", "", nil
	}
	name, role, _ = strings.Cut(whose, " ")
	return name, cmp.Or(role, roleOperate), nil
}

const (
	annsToken = "token-of-ann-0123456789"
	bobsToken = "token-of-bob-0123456789"
)

// counted is a limiter over memory with one rule of 5 a day, two of whose hits are used.
func counted(t testing.TB) *limiter.Limiter {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "k", Rule: &descriptor.Rule{
			Limits:   []descriptor.Limit{{Name: "daily", Requests: 5, Window: descriptor.Window{Unit: descriptor.Year}}},
			Position: descriptor.Position{File: "a.yaml", Line: 4, Col: 5},
		}},
		{Key: "never", Rule: &descriptor.Rule{Limits: []descriptor.Limit{{Window: descriptor.Window{Unit: descriptor.Year}}}}},
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}}, descriptor.Options{})

	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	for range 2 {
		req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{{Key: "k", Value: "v"}}}}}
		if err := l.Decide(t.Context(), time.Now(), req, &limiter.Decision{}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func with(ctx context.Context, authorization ...string) context.Context {
	for _, a := range authorization {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
	}
	return ctx
}

func kv(pairs ...string) (entries []*adminv1.Entry) {
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		entries = append(entries, &adminv1.Entry{Key: k, Value: v})
	}
	return entries
}

func TestPeekAndReset(t *testing.T) {
	r := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	client := adminv1.NewCounterServiceClient(r.admin)
	ctx := with(within(t), "Bearer "+annsToken)

	got, err := client.Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v")})
	if err != nil {
		t.Fatal(err)
	}
	limit := &adminv1.Limit{
		Name: "daily", RequestsPerUnit: 5, Unit: "year", UnitMultiplier: 1, Window: durationpb.New(365 * 24 * time.Hour),
		Algorithm: "fixed_window", Align: "clock", CounterKey: []byte("d|k=v|f31536000"),
	}
	rule := &adminv1.Rule{Path: "d.k", Limits: []*adminv1.Limit{limit}, Position: &adminv1.Position{File: "a.yaml", Line: 4, Column: 5}}
	state := &adminv1.CounterState{Limit: limit, Words: "5 per year, fixed window", Capacity: 5, Used: 2, Remaining: 3, Wait: durationpb.New(0)}
	ignore := protocmp.IgnoreFields(&adminv1.CounterState{}, "reset_after", "reset_at")
	want := &adminv1.PeekResponse{DomainKnown: true, Rule: rule, Counters: []*adminv1.CounterState{state}}
	if diff := gocmp.Diff(want, got, protocmp.Transform(), ignore); diff != "" {
		t.Errorf("Peek (-want +got):\n%s", diff)
	}
	left := time.Until(got.GetCounters()[0].GetResetAt().AsTime()) - got.GetCounters()[0].GetResetAfter().AsDuration()
	if left.Abs() > patience || got.GetCounters()[0].GetResetAfter().AsDuration() <= 0 {
		t.Errorf("the window ends in %s, at %s", got.GetCounters()[0].GetResetAfter().AsDuration(), got.GetCounters()[0].GetResetAt().AsTime())
	}

	cleared, err := client.Reset(ctx, &adminv1.ResetRequest{Domain: "d", Entries: kv("k=v")})
	wantCleared := &adminv1.ResetResponse{DomainKnown: true, Rule: rule, Counters: []*adminv1.CounterState{state}}
	if diff := gocmp.Diff(wantCleared, cleared, protocmp.Transform(), ignore); err != nil || diff != "" {
		t.Errorf("Reset: %v (-want +got):\n%s", err, diff)
	}
	if got, err = client.Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v")}); err != nil || got.GetCounters()[0].GetUsed() != 0 {
		t.Errorf("after the reset: %v %v", got, err)
	}

	if got, err = client.Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("never=v")}); err != nil || got.GetCounters()[0].Wait != nil {
		t.Errorf("a limit of nothing: %v %v, want no wait", got, err)
	}
	requested := &adminv1.RequestLimit{RequestsPerUnit: 7, Unit: "minute", UnitMultiplier: 5}
	if got, err = client.Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v"), Limit: requested}); err != nil ||
		got.GetRule() != nil || got.GetReason() != "" || got.GetCounters()[0].GetWords() != "7 per 5 minutes, fixed window" {
		t.Errorf("a limit of the request: %v %v", got, err)
	}
	if cleared, err = client.Reset(ctx, &adminv1.ResetRequest{Domain: "d", Entries: kv("free=v")}); err != nil || !cleared.GetRule().GetUnlimited() || len(cleared.GetCounters()) != 0 {
		t.Errorf("unlimited: %v %v", cleared, err)
	}
	if cleared, err = client.Reset(ctx, &adminv1.ResetRequest{Domain: "nobody", Entries: kv("k=v")}); err != nil || cleared.GetDomainKnown() || cleared.GetReason() == "" {
		t.Errorf("a domain without rules: %v %v", cleared, err)
	}

	audit := r.log.With(`msg="reset of counters"`)
	if len(audit) != 3 {
		t.Fatalf("%d lines about resets, want one for each of 3:\n%s", len(audit), r.log)
	}
	for i, want := range [][]string{
		{"level=WARN", "from=127.0.0.1:", "token_of=ann", "domain=d", `entries="k=v"`, "rule=d.k", `keys="[d|k=v|f31536000]"`, "used=[2]", "result=cleared"},
		{"token_of=ann", "rule=d.free", `result="nothing to clear"`},
		{"token_of=ann", "domain=nobody", `result="nothing to clear"`},
	} {
		for _, part := range want {
			if !strings.Contains(audit[i], part) {
				t.Errorf("line %d does not say %s: %s", i, part, audit[i])
			}
		}
	}
	if strings.Contains(r.log.String(), annsToken) {
		t.Errorf("the token is in the log:\n%s", r.log)
	}
}

func TestCounterRequestsThatMakeNoSense(t *testing.T) {
	r := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}, Bounds: Bounds{MaxEntries: 2, MaxTextBytes: 10}})
	client := adminv1.NewCounterServiceClient(r.admin)
	ctx := with(within(t), "bearer "+annsToken)
	for name, req := range map[string]*adminv1.ResetRequest{
		"no domain":       {Entries: kv("k=v")},
		"no entries":      {Domain: "d"},
		"many entries":    {Domain: "d", Entries: kv("k=v", "k=v", "k=v")},
		"a long domain":   {Domain: "0123456789a", Entries: kv("k=v")},
		"a long value":    {Domain: "d", Entries: kv("k=0123456789a")},
		"an odd unit":     {Domain: "d", Entries: kv("k=v"), Limit: &adminv1.RequestLimit{Unit: "fortnight"}},
		"no unit":         {Domain: "d", Entries: kv("k=v"), Limit: &adminv1.RequestLimit{}},
		"a long limit   ": {Domain: "d", Entries: kv("k=v"), Limit: &adminv1.RequestLimit{Unit: "year", UnitMultiplier: 1 << 31}},
	} {
		if _, err := client.Reset(ctx, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("Reset, %s: %v", name, err)
		}
		if _, err := client.Peek(ctx, &adminv1.PeekRequest{Domain: req.Domain, Entries: req.Entries, Limit: req.Limit}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("Peek, %s: %v", name, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Peek(context.Context, time.Time, string, *limiter.Descriptor) (limiter.Counters, error) {
	return limiter.Counters{}, f.err
}

func (f failing) Reset(context.Context, time.Time, string, *limiter.Descriptor) (limiter.Counters, error) {
	return limiter.Counters{}, f.err
}

func TestResetThatFails(t *testing.T) {
	r := start(t, Options{Counters: failing{fmt.Errorf("clear counters: %w", backend.ErrUnavailable)}, Access: Access{Tokens: owners{annsToken: "ann"}}})
	client := adminv1.NewCounterServiceClient(r.admin)
	_, err := client.Reset(with(within(t), "Bearer "+annsToken), &adminv1.ResetRequest{Domain: "d", Entries: kv("k=v")})
	if status.Code(err) != codes.Unavailable || len(r.log.With(`result="failed`)) != 1 || len(r.log.With("backend unavailable")) != 1 {
		t.Errorf("%v\n%s", err, r.log)
	}
}

// A client without a token, or with a wrong one, can neither look at counters nor clear them.
func TestOperatorsAreRejected(t *testing.T) {
	for name, c := range map[string]struct {
		tokens  Tokens
		send    []string
		code    codes.Code
		message string
		logged  string
	}{
		"off":             {nil, []string{"Bearer " + annsToken}, codes.PermissionDenied, "RATELIMITD_ADMIN_TOKEN_FILE", "is off"},
		"no token":        {owners{annsToken: "ann"}, nil, codes.Unauthenticated, "authorization: Bearer", "a token is required"},
		"another scheme":  {owners{annsToken: "ann"}, []string{"Basic " + annsToken}, codes.Unauthenticated, "authorization: Bearer", "a token is required"},
		"an empty token":  {owners{annsToken: "ann", "": "nobody"}, []string{"Bearer "}, codes.Unauthenticated, "authorization: Bearer", "a token is required"},
		"two tokens":      {owners{annsToken: "ann"}, []string{"Bearer " + annsToken, "Bearer " + annsToken}, codes.Unauthenticated, "authorization: Bearer", "a token is required"},
		"a wrong token":   {owners{annsToken: "ann"}, []string{"Bearer " + bobsToken}, codes.Unauthenticated, "the token is unknown", "is unknown"},
		"tokens are lost": {owners(nil), []string{"Bearer " + annsToken}, codes.Unavailable, "the server's log has the details", "cannot read some file"},
	} {
		t.Run(name, func(t *testing.T) {
			l := counted(t)
			r := start(t, Options{Counters: l, Access: Access{Tokens: c.tokens}})
			client := adminv1.NewCounterServiceClient(r.admin)
			ctx := with(within(t), c.send...)
			_, err := client.Reset(ctx, &adminv1.ResetRequest{Domain: "d", Entries: kv("k=v")})
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "some file") {
				t.Errorf("Reset: %v, want %s with %q", err, c.code, c.message)
			}
			if _, err := client.Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v")}); status.Code(err) != c.code {
				t.Errorf("Peek: %v, want %s", err, c.code)
			}
			still, err := l.Peek(t.Context(), time.Now(), "d", &limiter.Descriptor{Entries: []descriptor.Entry{{Key: "k", Value: "v"}}})
			if err != nil || still.List[0].Used != 2 {
				t.Errorf("the counter has %+v, %v: want 2 used as before", still.List, err)
			}
			lines := r.log.With(`msg="operator denied"`)
			if len(lines) == 0 || !strings.Contains(lines[0], c.logged) || !strings.Contains(lines[0], "path=/ratelimitd.admin.v1.CounterService/Reset") || !strings.Contains(lines[0], "from=127.0.0.1:") {
				t.Errorf("the log says %q, want %q", lines, c.logged)
			}
			if s := r.log.String(); strings.Contains(s, annsToken) || strings.Contains(s, bobsToken) {
				t.Errorf("a token is in the log:\n%s", s)
			}
		})
	}
}

// Whoever tries very often does not fill the log.
func TestRejectedOperatorsAreLoggedNowAndThen(t *testing.T) {
	r := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	client := adminv1.NewCounterServiceClient(r.admin)
	began := time.Now()
	const tries = 300
	for range tries {
		if _, err := client.Peek(within(t), &adminv1.PeekRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Fatal(err)
		}
	}
	lines := r.log.With("operator denied")
	if most := int(time.Since(began)/time.Second) + 3; len(lines) == 0 || len(lines) > most || len(lines) == tries {
		t.Errorf("%d lines about %d denials, want %d at most", len(lines), tries, most)
	}
}

// adminTLS is a server whose admin port is encrypted, and asks for certificates of an authority if there is one.
func adminTLS(t *testing.T, ca *tlstest.Authority, clients *tlstest.Authority, tokens Tokens) *running {
	t.Helper()
	return adminTLSWith(t, ca, clients, Access{Tokens: tokens})
}

// adminTLSWith is adminTLS with more about who may use the port.
func adminTLSWith(t *testing.T, ca *tlstest.Authority, clients *tlstest.Authority, access Access) *running {
	t.Helper()
	pair := ca.Issue(t, "rl.test")
	content := map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}
	o := tlsfiles.Options{Use: "admin", Log: slog.New(slog.DiscardHandler)}
	if clients != nil {
		content["ca.crt"] = clients.PEM
	}
	volume := tlstest.NewVolume(t, content)
	o.Cert, o.Key = volume.Path("tls.crt"), volume.Path("tls.key")
	if clients != nil {
		o.CA = volume.Path("ca.crt")
	}
	files, err := tlsfiles.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	config, err := files.Server()
	if err != nil {
		t.Fatal(err)
	}
	access.TLS, access.ClientCerts = config, clients != nil
	return start(t, Options{Counters: counted(t), Access: access})
}

// A client that has made a request is past its handshake, and makes no room for others.
func TestAdminConnectionsWithRequestsStay(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	r := adminTLS(t, ca, nil, owners{annsToken: "ann"})
	for _, http2 := range []bool{false, true} {
		var clients []*http.Client
		dials := 0
		for range 2 {
			for i := range 40 { // one address may have 25 unfinished connections
				if i == len(clients) {
					transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test"}, ForceAttemptHTTP2: http2}
					clients = append(clients, &http.Client{Transport: transport, Timeout: patience})
					t.Cleanup(transport.CloseIdleConnections)
				}
				ctx := httptrace.WithClientTrace(within(t), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
					if !c.Reused {
						dials++
					}
				}})
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.DebugAddr.String()+"/stats", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := clients[i].Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
		if dials != 40 {
			t.Errorf("HTTP/2 %v: 40 clients needed %d connections", http2, dials)
		}
	}
}

func TestAdminTLS(t *testing.T) {
	ca, clients, others := tlstest.NewAuthority(t, "ca"), tlstest.NewAuthority(t, "clients"), tlstest.NewAuthority(t, "others")
	peek := func(r *running, config *tls.Config, authorization ...string) error {
		conn := dial(t, r.DebugAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		defer conn.Close()
		_, err := adminv1.NewCounterServiceClient(conn).Reset(with(within(t), authorization...), &adminv1.ResetRequest{Domain: "d", Entries: kv("k=v")})
		return err
	}
	trusting := func(certs ...tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", Certificates: certs}
	}
	t.Run("TLS without a client certificate or a token is not enough", func(t *testing.T) {
		r := adminTLS(t, ca, nil, nil)
		if err := peek(r, trusting()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v", err)
		}
	})
	t.Run("TLS and a token", func(t *testing.T) {
		r := adminTLS(t, ca, nil, owners{annsToken: "ann"})
		if err := peek(r, trusting(), "Bearer "+annsToken); err != nil {
			t.Errorf("%v", err)
		}
		if err := peek(r, trusting()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("no token: %v", err)
		}
		if code, _ := getTLS(t, r, trusting(), "/stats"); code != 401 {
			t.Errorf("/stats: %d", code)
		}
	})
	t.Run("certificates", func(t *testing.T) {
		r := adminTLS(t, ca, clients, nil)
		mine := clients.Issue(t, "ann", "spiffe://test/ann").TLS(t)
		if err := peek(r, trusting(mine)); err != nil {
			t.Errorf("%v", err)
		}
		if lines := r.log.With("reset of counters"); len(lines) != 1 || !strings.Contains(lines[0], `certificate="CN=ann spiffe://test/ann"`) {
			t.Errorf("the log says %q", lines)
		}
		if err := peek(r, trusting()); status.Code(err) != codes.Unavailable {
			t.Errorf("no certificate: %v", err)
		}
		if err := peek(r, trusting(others.Issue(t, "eve").TLS(t))); status.Code(err) != codes.Unavailable {
			t.Errorf("a certificate of somebody else: %v", err)
		}
		if code, _ := getTLS(t, r, trusting(mine), "/stats"); code != 200 {
			t.Errorf("/stats: %d", code)
		}
	})
	t.Run("who has no certificate is logged now and then", func(t *testing.T) {
		r := adminTLS(t, ca, clients, nil)
		began := time.Now()
		const tries = 30
		for range tries {
			if err := peek(r, trusting()); status.Code(err) != codes.Unavailable {
				t.Fatal(err)
			}
		}
		lines := r.log.With("TLS handshake error from 127.0.0.1")
		if most := int(time.Since(began)/time.Second) + 3; len(lines) == 0 || len(lines) > most {
			t.Errorf("%d lines about %d handshakes, want %d at most", len(lines), tries, most)
		}
	})
	t.Run("both are asked for", func(t *testing.T) {
		r := adminTLS(t, ca, clients, owners{annsToken: "ann"})
		mine := clients.Issue(t, "ann").TLS(t)
		if err := peek(r, trusting(mine)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a certificate without a token: %v", err)
		}
		if err := peek(r, trusting(mine), "Bearer "+annsToken); err != nil {
			t.Errorf("both: %v", err)
		}
	})
}

// getTLS asks an HTTP endpoint of the admin port.
func getTLS(t *testing.T, r *running, config *tls.Config, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get("https://" + r.DebugAddr.String() + path) //nolint:noctx // bounded by the client
	if err != nil {
		t.Errorf("GET %s: %v", path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(body)
}
