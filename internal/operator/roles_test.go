package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// everyMethod is every method of the services of this project.
func everyMethod(t *testing.T) (paths []string) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage(adminv1.File_ratelimitd_admin_v1_admin_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				paths = append(paths, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	if len(paths) < 10 {
		t.Fatalf("only %q", paths)
	}
	return paths
}

// Every method has a row with the role that it needs, and the port enforces it.
func TestRolesOfEveryMethod(t *testing.T) {
	guarded := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann", bobsToken: "bob read"}}})
	open := start(t, Options{Counters: counted(t)})
	call := func(r *running, path string, ctx context.Context) codes.Code {
		return status.Code(r.admin.Invoke(ctx, path, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	denied := func(c codes.Code) bool { return c == codes.PermissionDenied || c == codes.Unauthenticated }
	for _, path := range everyMethod(t) {
		row, ok := needs[path]
		if !ok {
			t.Errorf("%s has no row in the table of roles: add one to needs", path)
			continue
		}
		if c := call(guarded, path, within(t)); c != codes.Unauthenticated {
			t.Errorf("%s without a token: %s", path, c)
		}
		if c := call(guarded, path, with(within(t), "Bearer "+annsToken)); denied(c) {
			t.Errorf("%s with the role operate: %s", path, c)
		}
		if c := call(guarded, path, with(within(t), "Bearer "+bobsToken)); denied(c) != (row.role == roleOperate) {
			t.Errorf("%s, which needs the role %s, with the role read: %s", path, row.role, c)
		}
		if c := call(open, path, within(t)); denied(c) != row.named {
			t.Errorf("%s on a port that requires nothing: %s", path, c)
		}
		if row.role == roleOperate && !row.named {
			t.Errorf("%s changes something, and no name would be in the log", path)
		}
	}
}

// Every row names a method or a page that exists.
func TestTableOfRolesNamesWhatExists(t *testing.T) {
	methods := everyMethod(t)
	r := start(t, Options{Counters: counted(t), LogLevel: &twoLevels{now: "quiet"}, HotKeys: hotKeysOf(hotTracker())})
	for path := range needs {
		switch {
		case strings.HasPrefix(path, "/grpc.reflection."):
		case isService(path):
			if !strings.Contains(strings.Join(methods, " "), path) {
				t.Errorf("there is no method %s", path)
			}
		default:
			if code, _ := get(t, r.DebugAddr, path); code != http.StatusOK {
				t.Errorf("%s: %d", path, code)
			}
		}
	}
}

// A token with the role read sees pages and changes nothing.
func TestRolesOfPages(t *testing.T) {
	r := start(t, Options{
		Counters: counted(t), LogLevel: &twoLevels{now: "quiet"}, HotKeys: hotKeysOf(hotTracker()),
		Access: Access{Tokens: owners{annsToken: "ann", bobsToken: "bob read"}},
	})
	for _, c := range []struct {
		method, path   string
		reads, operate int
	}{
		{http.MethodGet, "/", 200, 200},
		{http.MethodGet, "/rlconfig", 200, 200},
		{http.MethodGet, "/stats", 200, 200},
		{http.MethodGet, "/regions", 200, 200},
		{http.MethodGet, "/debug/hotkeys", 200, 200},
		{http.MethodGet, "/loglevel", 200, 200},
		{http.MethodHead, "/loglevel", 200, 200},
		{http.MethodPut, "/loglevel?level=loud", 403, 200},
		{http.MethodPost, "/loglevel?level=quiet", 403, 405},
		{http.MethodGet, "/debug/pprof/", 403, 200},
		{http.MethodGet, "/debug/pprof/heap?debug=1", 403, 200},
		{http.MethodPost, "/debug/pprof/symbol", 403, 200},
		{http.MethodGet, "/none", 404, 404},
		{http.MethodPut, "/none", 403, 404},
	} {
		for token, want := range map[string]int{annsToken: c.operate, bobsToken: c.reads} {
			code, _, body := asked(t, http.DefaultClient, c.method, "http://"+r.DebugAddr.String()+c.path, map[string]string{"Authorization": "Bearer " + token})
			if code != want || code == 403 && !strings.Contains(body, "needs the role operate") {
				t.Errorf("%s %s of %s: %d %q, want %d", c.method, c.path, token, code, body, want)
			}
		}
	}
	if lines := r.log.With("the log level was changed"); len(lines) != 1 || !strings.Contains(lines[0], "token_of=ann") || !strings.Contains(lines[0], "before=quiet after=loud") {
		t.Errorf("the log says %q", lines)
	}
}

// A certificate has the role operate, unless there is a list of names: then the names decide. With tokens both need the
// role.
func TestRolesOfCertificates(t *testing.T) {
	ca, clients := tlstest.NewAuthority(t, "ca"), tlstest.NewAuthority(t, "clients")
	// role returns the rights of a client with a certificate for some names.
	role := func(r *running, names string, authorization ...string) string {
		certificate := clients.Issue(t, append([]string{"CN=somebody"}, strings.Fields(names)...)...)
		config := &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test", Certificates: []tls.Certificate{certificate.TLS(t)}}
		conn := dial(t, r.DebugAddr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		defer conn.Close()
		client := adminv1.NewCounterServiceClient(conn)
		_, peeked := client.Peek(with(within(t), authorization...), &adminv1.PeekRequest{Domain: "d", Entries: kv("k=v")})
		_, reset := client.Reset(with(within(t), authorization...), &adminv1.ResetRequest{Domain: "d", Entries: kv("k=v")})
		switch [2]codes.Code{status.Code(peeked), status.Code(reset)} {
		case [2]codes.Code{codes.OK, codes.OK}:
			return roleOperate
		case [2]codes.Code{codes.OK, codes.PermissionDenied}:
			return roleRead
		case [2]codes.Code{codes.PermissionDenied, codes.PermissionDenied}:
			return "none"
		}
		return fmt.Sprint(peeked, reset)
	}
	const ann, bob = "spiffe://test/ann", "spiffe://test/bob"
	everybody := adminTLS(t, ca, clients, nil)
	named := func(tokens Tokens, items ...string) *running {
		names, err := ParseCertificateNames(items)
		if err != nil {
			t.Fatal(err)
		}
		return adminTLSWith(t, ca, clients, Access{Names: names, Tokens: tokens})
	}
	some := named(nil, ann, "read "+bob, " operate  ops.test ", "read dash.test", "read both.test", "both.test", "10.0.0.1")
	both := named(owners{annsToken: "ann", bobsToken: "bob read"}, ann, "read "+bob)
	for name, c := range map[string]struct {
		got  string
		want string
	}{
		"no list":                              {role(everybody, bob), roleOperate},
		"no list, no names":                    {role(everybody, ""), roleOperate},
		"a name without a role":                {role(some, ann), roleOperate},
		"a name that reads":                    {role(some, bob), roleRead},
		"a DNS name that operates":             {role(some, "ops.test"), roleOperate},
		"a DNS name that reads":                {role(some, "dash.test"), roleRead},
		"an IP address":                        {role(some, "10.0.0.1"), roleOperate},
		"none of the names":                    {role(some, "spiffe://test/eve"), "none"},
		"a longer URI":                         {role(some, ann+"/more"), "none"},
		"no names":                             {role(some, ""), "none"},
		"two names, the first operates":        {role(some, ann+" dash.test"), roleOperate},
		"two names, the last operates":         {role(some, "dash.test ops.test"), roleOperate},
		"two names, one is listed":             {role(some, "eve.test dash.test"), roleRead},
		"one name, listed with both roles":     {role(some, "both.test"), roleOperate},
		"all names below test":                 {role(some, "*.test"), roleOperate},
		"all names below another":              {role(some, "*.ops.test"), "none"},
		"a certificate and a token":            {role(both, ann, "Bearer "+annsToken), roleOperate},
		"the token only reads":                 {role(both, ann, "Bearer "+bobsToken), roleRead},
		"the certificate only reads":           {role(both, bob, "Bearer "+annsToken), roleRead},
		"neither is for more than for reading": {role(both, bob, "Bearer "+bobsToken), roleRead},
		"a token, and none of the names":       {role(both, "spiffe://test/eve", "Bearer "+annsToken), "none"},
		"a token that reads, and no name":      {role(both, "spiffe://test/eve", "Bearer "+bobsToken), "none"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
}

func TestParseCertificateNames(t *testing.T) {
	for item, want := range map[string]string{
		"":                    "an item is empty",
		"  ":                  "an item is empty",
		"read":                `"read" has no name`,
		" operate ":           `has no name`,
		"reader ann":          `"reader ann" has an unknown role: write read or operate`,
		"Operate ann":         "unknown role",
		"ann read":            "unknown role",
		"read operate ann":    "more than a role and a name",
		"read spiffe://a b c": "more than a role and a name",
	} {
		if names, err := ParseCertificateNames([]string{"ann", item}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v %v, want %q", item, names, err, want)
		}
	}
}

// A web page cannot use the API on a reader's machine: neither with a host name that resolves to the port's address,
// nor by sending a request from another origin.
func TestWebPagesCannotCallTheServices(t *testing.T) {
	r := explaining(t)
	const body = `{"domain": "d"}`
	self := "http://" + r.DebugAddr.String()
	for name, c := range map[string]struct {
		contentType string
		header      map[string]string
		code        int
	}{
		"curl":                                  {"application/json", nil, 200},
		"the console":                           {"application/json", map[string]string{"Origin": self, "Sec-Fetch-Site": "same-origin"}, 200},
		"another name for this address":         {"application/json", map[string]string{"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, 403},
		"another name, gRPC-Web":                {"application/grpc-web+json", map[string]string{"Host": "evil.example"}, 403},
		"another origin, JSON":                  {"application/json", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"another origin, JSON as text":          {"text/plain", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"another origin, a form":                {"application/x-www-form-urlencoded", map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403},
		"another origin, a form of parts":       {"multipart/form-data; boundary=x", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"another port of this machine":          {"application/json", map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}, 403},
		"a sandboxed page":                      {"text/plain", map[string]string{"Origin": "null"}, 403},
		"an old browser, another origin":        {"text/plain", map[string]string{"Origin": "https://evil.example"}, 403},
		"an old browser's form, without origin": {"application/x-www-form-urlencoded", nil, 415},
		"an old browser's text, without origin": {"text/plain", nil, 415},
		"no content type":                       {"", nil, 415},
	} {
		code, h, got := post(t, r, explainPath, c.contentType, body, c.header)
		if c.contentType == "application/grpc-web+json" { // its errors are not in the HTTP status
			if code != 200 || h.Get("Grpc-Status") != "7" {
				t.Errorf("%s: %d %v", name, code, h)
			}
			continue
		}
		if code != c.code {
			t.Errorf("%s: %d %s, want %d", name, code, got, c.code)
		}
		for header := range h {
			if strings.HasPrefix(header, "Access-Control-") {
				t.Errorf("%s: the answer has %s", name, header)
			}
		}
	}
	// A GET passes the check of the origin, and a preflight asks whether a request may be sent: neither has an answer.
	for _, path := range everyMethod(t) {
		for _, query := range []string{"", "?connect=v1&encoding=json&message=%7B%7D"} {
			if code, _, got := asked(t, http.DefaultClient, http.MethodGet, self+path+query, map[string]string{"Sec-Fetch-Site": "cross-site"}); code != 405 && code != 403 {
				t.Errorf("GET %s%s: %d %s", path, query, code, got)
			}
		}
		preflight := map[string]string{"Origin": "https://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type", "Sec-Fetch-Site": "cross-site"}
		code, h, _ := asked(t, http.DefaultClient, http.MethodOptions, self+path, preflight)
		if code/100 == 2 || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("OPTIONS %s: %d %v", path, code, h)
		}
	}
}
