package server

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// Every body that is refused is described in words of this program: where the fault is, and what to write.
func TestFaultsOfJSON(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for body, want := range map[string]string{
		"":                                    "the body is empty: send a RateLimitRequest as JSON",
		" \n":                                 "the body is empty: send a RateLimitRequest as JSON",
		"domain: d":                           `line 1, column 1: 'd' is not JSON here`,
		`{"domain": "é" "x"}`:                 `line 1, column 16: '"' is not JSON here`,
		"{\n  \"domain\": \"d\",}":            `line 2, column 17: '}' is not JSON here`,
		`{"domain": "d"}}`:                    `line 1, column 16: '}' is not JSON here`,
		`{"domain": "d"`:                      "line 1, column 15: the JSON ends too early: close what is open",
		`{"domain": "d`:                       "line 1, column 14: the JSON ends too early: close what is open",
		`{"domain": tru`:                      "line 1, column 15: the JSON ends too early: close what is open",
		"{\"domain\": \"\xff\"}":              "the body is not UTF-8",
		`[]`:                                  "line 1, column 1: the body must be an object, this is a list",
		`null`:                                "line 1, column 1: the body must be an object, this is null",
		`{"descriptor": []}`:                  `line 1, column 2: unknown field "descriptor": the fields of RateLimitRequest are domain, descriptors, hitsAddend`,
		`{"` + long + `": 1}`:                 `line 1, column 2: unknown field "` + long[:40] + `"...: the fields of RateLimitRequest are domain, descriptors, hitsAddend`,
		`{"hits_addend": 1, "hitsAddend": 2}`: `line 1, column 20: field "hitsAddend" twice: write it once`,
		`{"domain": 5}`:                       "line 1, column 12: domain must be a text in quotes, this is the number 5",
		`{"domain": ["d"]}`:                   "line 1, column 12: domain must be a text in quotes, this is a list",
		`{"descriptors": {}}`:                 "line 1, column 17: descriptors must be a list, this is an object",
		`{"descriptors": [{}, 7]}`:            "line 1, column 22: descriptors[1] must be an object, this is the number 7",
		`{"descriptors": [null]}`:             "line 1, column 18: descriptors[0] must be an object, this is null",
		`{"hitsAddend": -1}`:                  "line 1, column 16: hitsAddend must be a whole number from 0 to 4294967295, this is the number -1",
		`{"hitsAddend": "many"}`:              `line 1, column 16: hitsAddend must be a whole number from 0 to 4294967295, this is the text "many"`,
		`{"hitsAddend": 4294967296}`:          "line 1, column 16: hitsAddend must be a whole number from 0 to 4294967295, this is the number 4294967296",
		`{"descriptors": [{"hitsAddend": {"value": 3}}]}`:                                                                 "line 1, column 33: descriptors[0].hitsAddend must be a whole number from 0 to 18446744073709551615, this is an object",
		`{"descriptors": [{"isNegativeHits": "yes"}]}`:                                                                    `line 1, column 37: descriptors[0].isNegativeHits must be true or false, this is the text "yes"`,
		`{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}`:                                                             `line 1, column 37: descriptors[0].limit.unit must be one of UNKNOWN, SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, this is the text "FORTNIGHT"`,
		"{\"domain\": \"d\", \"descriptors\": [\n  {\"entries\": [{\"key\": \"a\"}, {\"key\": \"k\", \"value\": 7}]}\n]}": "line 2, column 52: descriptors[0].entries[1].value must be a text in quotes, this is the number 7",
		`{"descriptors": [{"entries": [{"key": "k", "val": "v"}]}]}`:                                                      `line 1, column 44: unknown field "val": the fields of Entry are key, value`,
	} {
		var in ratelimitv3.RateLimitRequest
		if err := protojson.Unmarshal([]byte(body), &in); err == nil {
			t.Errorf("%s is accepted", body)
		}
		if got := faultOf([]byte(body), in.ProtoReflect().Descriptor()); got != want {
			t.Errorf("%.60s\n got %s\nwant %s", body, got, want)
		}
	}
}

// What protojson refuses is always described, without a panic.
func TestEveryFaultOfJSONIsDescribed(t *testing.T) {
	pieces := []string{"{", "}", "[", "]", ",", ":", `"domain"`, `"descriptors"`, `"entries"`, `"key"`, `"hitsAddend"`, `"limit"`, `"unit"`, "null", "1", "-1.5", "1e400", "true", " ", "\n", `"`, "\\", "\xff", "x"}
	rapid.Check(t, func(t *rapid.T) {
		body := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 30).Draw(t, "body"), "")
		var in ratelimitv3.RateLimitRequest
		if protojson.Unmarshal([]byte(body), &in) == nil {
			return
		}
		if said := faultOf([]byte(body), in.ProtoReflect().Descriptor()); said == "" || strings.Contains(said, "proto") {
			t.Fatalf("%q: %q", body, said)
		}
	})
}
