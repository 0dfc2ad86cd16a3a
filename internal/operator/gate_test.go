package operator

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// asked gets a page of a listener with these headers; "Host" may be one of them.
func asked(t *testing.T, client *http.Client, method, url string, header map[string]string) (code int, h http.Header, body string) {
	t.Helper()
	return send(t, client, method, url, header, http.NoBody)
}

// send is asked with a body.
func send(t *testing.T, client *http.Client, method, url string, header map[string]string, content io.Reader) (code int, h http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), method, url, content)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	req.Close = true
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// everyPage returns the pages that the index of an admin port names, and those that it does not name.
func everyPage(t *testing.T, index string) []string {
	t.Helper()
	pages := []string{"/", "/none", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1", "/debug/pprof/symbol"}
	for line := range strings.Lines(index) {
		// the files of the console are for everybody
		if path, _, _ := strings.Cut(line, " "); strings.HasPrefix(path, "/") && path != "/console/" {
			pages = append(pages, path)
		}
	}
	for _, known := range []string{"/rlconfig", "/stats", "/debug/pprof/", "/debug/hotkeys", "/loglevel"} {
		if !strings.Contains(index, known) {
			t.Errorf("the index does not name %s:\n%s", known, index)
		}
	}
	return pages
}

// everyCall has a call of every service on the admin port.
var everyCall = map[string]func(context.Context, *running) error{
	"ListRuleFiles": func(ctx context.Context, r *running) error {
		_, err := adminv1.NewAdminServiceClient(r.admin).ListRuleFiles(ctx, &adminv1.ListRuleFilesRequest{})
		return err
	},
	"HotKeys": func(ctx context.Context, r *running) error {
		_, err := adminv1.NewAdminServiceClient(r.admin).HotKeys(ctx, &adminv1.HotKeysRequest{})
		return err
	},
	"Peek": func(ctx context.Context, r *running) error {
		_, err := adminv1.NewCounterServiceClient(r.admin).Peek(ctx, &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v")})
		return err
	},
	"reflection": func(ctx context.Context, r *running) error {
		stream, err := reflectionv1.NewServerReflectionClient(r.admin).ServerReflectionInfo(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.Recv()
		return err
	},
}

// With a token configured, nothing on the admin port answers without it; with or without one, nothing answers to a host
// name that may be a web page's.
func TestGateOfOperators(t *testing.T) {
	options := func(tokens Tokens) Options {
		return Options{
			Counters: counted(t), LogLevel: &twoLevels{now: "quiet"}, HotKeys: hotKeysOf(hotTracker()),
			Rules:  Rules{Files: func() []descriptor.FileStatus { return nil }},
			Access: Access{Tokens: tokens, HostNames: []string{"ratelimitd", "*.svc.cluster.local"}},
		}
	}
	const right, wrong = "Bearer " + annsToken, "Bearer " + bobsToken
	guarded, open := start(t, options(owners{annsToken: "ann"})), start(t, options(nil))
	for name, c := range map[string]struct {
		to            *running
		authorization string
		host          string
		page          int // expected status; 0 if the request passes the gate, and the page may answer anything
		call          codes.Code
		callOfCounter codes.Code // where it differs
	}{
		"no token":                        {to: guarded, page: 401, call: codes.Unauthenticated},
		"a wrong token":                   {to: guarded, authorization: wrong, page: 401, call: codes.Unauthenticated},
		"the token by another scheme":     {to: guarded, authorization: "Basic " + annsToken, page: 401, call: codes.Unauthenticated},
		"the right token":                 {to: guarded, authorization: right},
		"another name, no token":          {to: guarded, host: "evil.example", page: 403, call: codes.PermissionDenied},
		"another name, the right token":   {to: guarded, authorization: right, host: "evil.example:6070", page: 403, call: codes.PermissionDenied},
		"a name that was added":           {to: guarded, authorization: right, host: "RateLimitd:6070"},
		"a name below one that was added": {to: guarded, authorization: right, host: "ratelimitd.prod.svc.cluster.local"},
		"only the end of a name":          {to: guarded, authorization: right, host: ".svc.cluster.local", page: 403, call: codes.PermissionDenied},
		"unguarded":                       {to: open, callOfCounter: codes.PermissionDenied},
		"unguarded, another name":         {to: open, host: "evil.example", page: 403, call: codes.PermissionDenied},
		"unguarded, as localhost":         {to: open, host: "localhost:6070", callOfCounter: codes.PermissionDenied},
		"unguarded, below localhost":      {to: open, host: "pod.localhost", callOfCounter: codes.PermissionDenied},
		"unguarded, by an address":        {to: open, host: "[2001:db8::1]:6070", callOfCounter: codes.PermissionDenied},
		"unguarded, nearly localhost":     {to: open, host: "localhost.evil.example", page: 403, call: codes.PermissionDenied},
		"unguarded, nearly an address":    {to: open, host: "127.0.0.1.evil.example", page: 403, call: codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			at := "http://" + c.to.DebugAddr.String()
			_, _, index := asked(t, http.DefaultClient, http.MethodGet, at+"/", map[string]string{"Authorization": right})
			header := map[string]string{}
			if c.authorization != "" {
				header["Authorization"] = c.authorization
			}
			if c.host != "" {
				header["Host"] = c.host
			}
			for _, page := range everyPage(t, index) {
				code, h, body := asked(t, http.DefaultClient, http.MethodGet, at+page, header)
				want := c.page
				if want == 0 {
					want = http.StatusOK
					if page == "/none" {
						want = http.StatusNotFound
					}
				}
				if code != want || (code == 401) != (h.Get("WWW-Authenticate") == "Bearer") {
					t.Errorf("%s: %d %q, want %d", page, code, body, want)
				}
				if c.page != 0 && strings.Count(body, "\n") != 1 {
					t.Errorf("%s: the rejection says %q, want one line", page, body)
				}
			}
			code, _, _ := asked(t, http.DefaultClient, http.MethodPut, at+"/loglevel?level=quiet", header)
			if want := cmp.Or(c.page, http.StatusOK); code != want {
				t.Errorf("PUT /loglevel: %d, want %d", code, want)
			}
			ctx := within(t)
			if c.authorization != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.authorization)
			}
			to := *c.to
			if c.host != "" {
				to.admin = dial(t, c.to.DebugAddr, grpc.WithAuthority(c.host))
			}
			for name, call := range everyCall {
				want := c.call
				if name == "Peek" && c.callOfCounter != codes.OK {
					want = c.callOfCounter
				}
				if err := call(ctx, &to); status.Code(err) != want {
					t.Errorf("%s: %v, want %s", name, err, want)
				}
			}
		})
	}
	if s := guarded.log.String(); strings.Contains(s, annsToken) || strings.Contains(s, bobsToken) {
		t.Errorf("a token is in the log:\n%s", s)
	}
}

// A request that a browser sends for a page of another origin is rejected; other clients are not affected.
func TestPagesOfOtherOrigins(t *testing.T) {
	r := start(t, Options{LogLevel: &twoLevels{now: "quiet"}})
	for name, c := range map[string]struct {
		header map[string]string
		code   int
	}{
		"curl -d":                        {map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 200},
		"a program that says nothing":    {nil, 200},
		"typed into a browser":           {map[string]string{"Sec-Fetch-Site": "none"}, 200},
		"a page of the same origin":      {map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://" + r.DebugAddr.String()}, 200},
		"a page of another site":         {map[string]string{"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}, 403},
		"a page of a neighbouring site":  {map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"an old browser, another origin": {map[string]string{"Origin": "https://evil.example"}, 403},
	} {
		code, _, _ := asked(t, http.DefaultClient, http.MethodPut, "http://"+r.DebugAddr.String()+"/loglevel?level=quiet", c.header)
		if code != c.code {
			t.Errorf("%s: PUT /loglevel: %d, want %d", name, code, c.code)
		}
	}
}

// Certificates guard all pages too. Over TLS the name is the one that the client has compared with the certificate.
func TestGateOfOperatorsOverTLS(t *testing.T) {
	ca, clients := tlstest.NewAuthority(t, "ca"), tlstest.NewAuthority(t, "clients")
	r := adminTLS(t, ca, clients, owners{annsToken: "ann"})
	mine := clients.Issue(t, "ann").TLS(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", Certificates: []tls.Certificate{mine}}}}
	for name, c := range map[string]struct {
		header map[string]string
		code   int
	}{
		"a certificate alone":      {nil, 401},
		"both":                     {map[string]string{"Authorization": "Bearer " + annsToken}, 200},
		"both, by the name dialed": {map[string]string{"Authorization": "Bearer " + annsToken, "Host": "rl.test"}, 200},
		"both, by another name":    {map[string]string{"Authorization": "Bearer " + annsToken, "Host": "evil.example"}, 403},
	} {
		if code, _, body := asked(t, client, http.MethodGet, "https://"+r.DebugAddr.String()+"/stats", c.header); code != c.code {
			t.Errorf("%s: %d %q, want %d", name, code, body, c.code)
		}
	}
}
