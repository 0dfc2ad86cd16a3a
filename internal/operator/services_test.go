package operator

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // its compressor
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	adminconnect "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1/adminv1connect"
)

// explaining is a server that explains every descriptor in the same way.
func explaining(t *testing.T) *running {
	t.Helper()
	return start(t, Options{Rules: Rules{Explain: func(domain string, entries []descriptor.Entry) descriptor.Explanation {
		return descriptor.Explanation{Known: true, Reason: fmt.Sprintf("no rule of %s for %v", domain, entries)}
	}}})
}

// post sends the body of a call to a method.
func post(t *testing.T, r *running, path, contentType, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	all := map[string]string{"Content-Type": contentType}
	for name, value := range header {
		all[name] = value
	}
	return send(t, http.DefaultClient, http.MethodPost, "http://"+r.DebugAddr.String()+path, all, strings.NewReader(body))
}

const explainPath = adminconnect.AdminServiceExplainProcedure

// The same port answers JSON, gRPC-Web and Connect's own protocol over HTTP/1.1 and HTTP/2. Other tests use gRPC.
func TestProtocolsOfTheServices(t *testing.T) {
	r := explaining(t)
	const want = "no rule of d for [{k v}]"
	code, h, body := post(t, r, explainPath, "application/json", `{"domain": "d", "entries": [{"key": "k", "value": "v"}]}`, nil)
	if code != 200 || h.Get("Content-Type") != "application/json" || !strings.Contains(body, `"domainKnown":true`) || !strings.Contains(body, want) {
		t.Errorf("JSON: %d %v %s", code, h, body)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	for name, c := range map[string]struct {
		client *http.Client
		opts   []connect.ClientOption
	}{
		"gRPC over HTTP/2":     {&http.Client{Transport: transport}, []connect.ClientOption{connect.WithGRPC()}},
		"gRPC-Web":             {http.DefaultClient, []connect.ClientOption{connect.WithGRPCWeb()}},
		"gRPC-Web over HTTP/2": {&http.Client{Transport: transport}, []connect.ClientOption{connect.WithGRPCWeb()}},
		"Connect":              {http.DefaultClient, nil},
		"Connect, compressed":  {http.DefaultClient, []connect.ClientOption{connect.WithSendGzip()}},
		"Connect with JSON":    {&http.Client{Transport: transport}, []connect.ClientOption{connect.WithProtoJSON()}},
	} {
		client := adminconnect.NewAdminServiceClient(c.client, "http://"+r.DebugAddr.String(), c.opts...)
		got, err := client.Explain(within(t), &adminv1.ExplainRequest{Domain: "d", Entries: kv("k=v")})
		if err != nil || got.GetReason() != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if _, err := client.Explain(within(t), &adminv1.ExplainRequest{}); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "domain must not be empty") {
			t.Errorf("%s: %v", name, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A request that is not a call of a known method is rejected in the form of the request.
func TestCallsOfUnknownMethods(t *testing.T) {
	r := explaining(t)
	for _, method := range []string{"/ratelimitd.admin.v1.NoService/Explain", "/ratelimitd.admin.v1.AdminService/Nothing", "/none"} {
		err := r.admin.Invoke(within(t), method, &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
	}
	if code, _, body := post(t, r, "/ratelimitd.admin.v1.AdminService/Nothing", "application/json", "{}", nil); code != 501 {
		t.Errorf("JSON: %d %s", code, body)
	}
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8"} {
		if code, _, body := post(t, r, explainPath, contentType, `{"domian": "d"}`, nil); code != 400 || !strings.Contains(body, "domian") {
			t.Errorf("%s: an unknown field: %d %s", contentType, code, body)
		}
	}
}

// Every method denies a message above the bound, in every protocol, also one that is compressed to a small part of its
// size.
func TestLargestMessages(t *testing.T) {
	r := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	authorized := with(within(t), "Bearer "+annsToken)
	blanks := strings.Repeat(" ", maxMessageBytes-2)
	bomb := gzipped(t, strings.Repeat(blanks, 40)) // 10 MiB, for each method
	bodies := []struct {
		name, content, encoding string
		code                    int
		says                    string
	}{
		{"JSON", blanks + " {}", "", 429, "larger than"},
		{"compressed JSON", gzipped(t, blanks+" {}"), "gzip", 429, "larger than"},
		{"a gzip bomb", bomb, "gzip", 429, "larger than"},
		{"compressed twice", gzipped(t, bomb), "gzip, gzip", 501, "unknown compression"},
	}
	for _, path := range everyMethod(t) {
		header := map[string]string{"Authorization": "Bearer " + annsToken}
		if code, _, body := post(t, r, path, "application/json", blanks+"{}", header); code == 429 {
			t.Errorf("%s, the largest message: %d %s", path, code, body)
		}
		for _, c := range bodies {
			if c.encoding != "" {
				header["Content-Encoding"] = c.encoding
			}
			if code, _, body := post(t, r, path, "application/json", c.content, header); code != c.code || !strings.Contains(body, c.says) {
				t.Errorf("%s, %s: %d %.200s", path, c.name, code, body)
			}
		}
		message := &adminv1.ExplainRequest{Domain: blanks}
		for name, opts := range map[string][]grpc.CallOption{"gRPC": nil, "compressed gRPC": {grpc.UseCompressor("gzip")}} {
			if err := r.admin.Invoke(authorized, path, message, &emptypb.Empty{}, opts...); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s, %s: %v", path, name, err)
			}
		}
	}
	stream, err := reflectionv1.NewServerReflectionClient(r.admin).ServerReflectionInfo(authorized)
	if err == nil {
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileByFilename{FileByFilename: blanks}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("reflection: %v", err)
	}
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The body of an error is the message Error, which describes it in docs/reference/admin-api.swagger.json.
func TestErrorsAsJSON(t *testing.T) {
	guarded := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	token := map[string]string{"Authorization": "Bearer " + annsToken}
	peek := adminconnect.CounterServicePeekProcedure
	for name, c := range map[string]struct {
		path, body string
		header     map[string]string
		want       string
	}{
		"of a method":       {peek, "{}", token, "invalid_argument"},
		"of the gate":       {peek, "{}", nil, "unauthenticated"},
		"of the JSON":       {peek, "{", token, "invalid_argument"},
		"an unknown method": {"/ratelimitd.admin.v1.CounterService/Nothing", "{}", token, "unimplemented"},
	} {
		code, _, body := post(t, guarded, c.path, "application/json", c.body, c.header)
		var got adminv1.Error
		if err := protojson.Unmarshal([]byte(body), &got); err != nil || code == http.StatusOK || got.GetCode() != c.want || got.GetMessage() == "" {
			t.Errorf("%s: %d %s (%v)", name, code, body, err)
		}
	}
}

// Numbers of 64 bits are texts in JSON, as in the JSON of all protos: docs/reference/grpc-api.md. Requests may have
// either.
func TestNumbersAsJSON(t *testing.T) {
	guarded := start(t, Options{Counters: counted(t), Access: Access{Tokens: owners{annsToken: "ann"}}})
	for _, n := range []string{`7`, `"7"`} {
		code, _, body := post(t, guarded, adminconnect.CounterServicePeekProcedure, "application/json",
			`{"domain": "d", "entries": [{"key": "k", "value": "v"}], "limit": {"requestsPerUnit": `+n+`, "unit": "hour"}}`, map[string]string{"Authorization": "Bearer " + annsToken})
		if code != 200 || !strings.Contains(body, `"capacity":"7"`) || !strings.Contains(body, `"remaining":"7"`) {
			t.Errorf("%d %s", code, body)
		}
	}
}

// A panic is an error in every protocol, and the port continues.
func TestPanicOfAServiceOverJSON(t *testing.T) {
	r := start(t, Options{Rules: Rules{Files: func() []descriptor.FileStatus { panic("kaboom") }}})
	code, _, body := post(t, r, adminconnect.AdminServiceListRuleFilesProcedure, "application/json", "{}", nil)
	if code != 500 || !strings.Contains(body, "the server's log has the details") || strings.Contains(body, "kaboom") || len(r.log.With("kaboom")) == 0 {
		t.Errorf("%d %s\n%s", code, body, r.log)
	}
}
