package filter

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/prototext"
)

// A condition on a header holds for some values of it. "|" separates several values, and "-" is a header that is
// absent.
func TestHeaderMatchers(t *testing.T) {
	for _, c := range []struct {
		matcher    string
		holds, not []string
	}{
		{``, []string{"", "a"}, []string{"-"}},
		{`present_match: true`, []string{"", "a"}, []string{"-"}},
		{`present_match: false`, []string{"-"}, []string{"", "a"}},
		{`present_match: true invert_match: true`, []string{"-"}, []string{"", "a"}},
		{`string_match { exact: "bob" }`, []string{"bob", "eve|bob"}, []string{"", "Bob", "bobby", "bob,eve", "-"}},
		{`string_match { exact: "bob" ignore_case: true }`, []string{"bob", "BoB"}, []string{"bobby"}},
		{`string_match { exact: "É" ignore_case: true }`, []string{"É"}, []string{"é"}},
		{`string_match { prefix: "bo" }`, []string{"bob", "bo"}, []string{"b", "Bob"}},
		{`string_match { prefix: "BO" ignore_case: true }`, []string{"bob"}, []string{"b"}},
		{`string_match { suffix: "ob" }`, []string{"bob", "ob"}, []string{"b", "bOB"}},
		{`string_match { suffix: "OB" ignore_case: true }`, []string{"bob"}, []string{"b"}},
		{`string_match { contains: "o" }`, []string{"bob"}, []string{"bb", "bOb"}},
		{`string_match { contains: "O" ignore_case: true }`, []string{"bob"}, []string{"bb"}},
		{`string_match { safe_regex { regex: "b.|eve" } }`, []string{"bo", "eve"}, []string{"bob", "evening", "bo\n"}},
		{`range_match { start: -2 end: 7 }`, []string{"-2", "6", "+3"}, []string{"7", "-3", "1.0", "", "-"}},
		{`string_match { exact: "bob" } invert_match: true`, []string{"eve", ""}, []string{"bob", "eve|bob", "-"}},
		{`string_match { exact: "bob" } invert_match: true treat_missing_header_as_empty: true`, []string{"eve", "-"}, []string{"bob"}},
		{`string_match { exact: "" } treat_missing_header_as_empty: true`, []string{"", "-"}, []string{"bob"}},
	} {
		m := new(routev3.HeaderMatcher)
		if err := prototext.Unmarshal([]byte(`name: "X-Name" `+c.matcher), m); err != nil {
			t.Fatalf("%s: %v", c.matcher, err)
		}
		matches, err := headerMatchers([]*routev3.HeaderMatcher{m})
		if err != nil {
			t.Errorf("%s: %v", c.matcher, err)
			continue
		}
		for want, all := range map[bool][]string{true: c.holds, false: c.not} {
			for _, values := range all {
				r := &testRequest{headers: map[string][]string{"x-name": strings.Split(values, "|")}}
				if values == "-" {
					r = new(testRequest)
				}
				if matches(r) != want {
					t.Errorf("%s: %v for %q", c.matcher, !want, values)
				}
			}
		}
	}
}

// A condition on a parameter holds for some queries.
func TestQueryMatchers(t *testing.T) {
	for _, c := range []struct {
		matcher    string
		holds, not []string
	}{
		{``, []string{"?q", "?q=", "?a&q=b", "?%71=a"}, []string{"", "?", "?Q=a", "?a=q", "?=q"}},
		{`present_match: true`, []string{"?q"}, []string{"?a=q"}},
		{`present_match: false`, []string{"", "?a=q"}, []string{"?q"}},
		{`string_match { exact: "a b" }`, []string{"?q=a%20b", "?q=a b&q=c"}, []string{"?q=a+b", "?q=c&q=a%20b", "?q=a%2"}},
		{`string_match { exact: "a%zb%4" }`, []string{"?q=a%zb%4"}, []string{"?q=a"}},
		{`string_match { exact: "b=c?d" }`, []string{"?q=b=c?d"}, nil},
		{`string_match { exact: "" }`, []string{"?q", "?q="}, []string{"", "?q=a"}},
	} {
		m := new(routev3.QueryParameterMatcher)
		if err := prototext.Unmarshal([]byte(`name: "q" `+c.matcher), m); err != nil {
			t.Fatalf("%s: %v", c.matcher, err)
		}
		matches, err := queryMatchers([]*routev3.QueryParameterMatcher{m})
		if err != nil {
			t.Errorf("%s: %v", c.matcher, err)
			continue
		}
		for want, all := range map[bool][]string{true: c.holds, false: c.not} {
			for _, query := range all {
				if matches(&testRequest{headers: map[string][]string{":path": {"/" + query}}}) != want {
					t.Errorf("%s: %v for %q", c.matcher, !want, query)
				}
			}
		}
	}
}

// All conditions must hold.
func TestEveryConditionHolds(t *testing.T) {
	const user, cost = `headers { name: "x-user" }`, `headers { name: "x-cost" string_match { exact: "7" } }`
	for conditions, want := range map[string]string{
		"": "header_match=a", user: "header_match=a", user + cost: "header_match=a", cost + `headers { name: "x-other" }`: "none",
	} {
		if got := descriptorOf(t, full, `actions { header_value_match { descriptor_value: "a" `+conditions+` } }`); got != want {
			t.Errorf("%s: %s", conditions, got)
		}
	}
}
