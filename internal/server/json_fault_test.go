package server

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// Every rejected body is described: the position of the fault, and the fault.
func TestFaultsOfJSON(t *testing.T) {
	for body, want := range map[string]string{
		"":                         "the body is empty: send a RateLimitRequest as JSON",
		" \n":                      "the body is empty: send a RateLimitRequest as JSON",
		"domain: d":                "line 1, column 1: invalid value domain",
		`{"domain": "é" "x"}`:      `line 1, column 16: unexpected token "x"`,
		"{\n  \"domain\": \"d\",}": "line 2, column 17: unexpected token }",
		`{"domain": "d"}}`:         "line 1, column 16: unexpected token }",
		`{"domain": "d"`:           "the JSON ends too early: close what is open",
		`{"domain": "d`:            "the JSON ends too early: close what is open",
		"{\"domain\": \"\xff\"}":   "line 1, column 12: invalid UTF-8 in string",
		`[]`:                       "line 1, column 1: unexpected token [",
		`{"descriptor": []}`:       `line 1, column 2: unknown field "descriptor"`,
		`{"` + strings.Repeat("x", 5000) + `": 1}`:            `line 1, column 2: unknown field "` + strings.Repeat("x", 85) + "...",
		`{"hits_addend": 1, "hitsAddend": 2}`:                 `line 1, column 20: duplicate field "hitsAddend"`,
		`{"domain": 5}`:                                       "line 1, column 12: invalid value for string field domain: 5",
		`{"descriptors": [{}, 7]}`:                            "line 1, column 22: unexpected token 7",
		`{"hitsAddend": 4294967296}`:                          "line 1, column 16: invalid value for uint32 field hitsAddend: 4294967296",
		`{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}`: `line 1, column 37: invalid value for enum field unit: "FORTNIGHT"`,
	} {
		var in ratelimitv3.RateLimitRequest
		err := protojson.Unmarshal([]byte(body), &in)
		if err == nil {
			t.Fatalf("%s is accepted", body)
		}
		if got := faultOf([]byte(body), in.ProtoReflect().Descriptor(), err); got != want {
			t.Errorf("%.60s\n got %s\nwant %s", body, got, want)
		}
	}
}

// Errors of protojson are always described, without a panic.
func TestEveryFaultOfJSONIsDescribed(t *testing.T) {
	pieces := []string{"{", "}", "[", "]", ",", ":", `"domain"`, `"descriptors"`, `"entries"`, `"key"`, `"hitsAddend"`, `"limit"`, `"unit"`, "null", "1", "-1.5", "1e400", "true", " ", "\n", `"`, "\\", "\xff", "x"}
	rapid.Check(t, func(t *rapid.T) {
		body := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 30).Draw(t, "body"), "")
		var in ratelimitv3.RateLimitRequest
		err := protojson.Unmarshal([]byte(body), &in)
		if err == nil {
			return
		}
		if said := faultOf([]byte(body), in.ProtoReflect().Descriptor(), err); said == "" || strings.Contains(said, "proto") {
			t.Fatalf("%q: %q", body, said)
		}
	})
}
