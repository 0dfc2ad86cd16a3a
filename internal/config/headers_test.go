package config

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func TestWrongHeadersSayWhere(t *testing.T) {
	seventeen := make([]string, 17)
	for i := range seventeen {
		seventeen[i] = fmt.Sprintf("{name: h%d, value: v}", i)
	}
	for _, c := range []struct{ headers, want string }{
		{"x", "2:10: `headers` must be a list, not the text \"x\": write some of `ratelimit`, `x-ratelimit`, `ietf` and `retry-after` in brackets, headers as `{name: NAME, value: VALUE}`, or `[]` for none"},
		{"[ietff]", "2:11: unknown `headers` \"ietff\": did you mean `ietf`?"},
		{"[{name: a}]", "2:11: a header without a `value`: write `{name: NAME, value: VALUE}`"},
		{"[{value: a}]", "2:11: a header without a `name`: write `{name: NAME, value: VALUE}`"},
		{"[{name: a, vlaue: b}]", "2:21: unknown key `vlaue`: did you mean `value`?"},
		{"[{name: 'a b', value: c}]", "2:18: \"a b\" is not a valid header name: write letters, digits and - _ . only, such as X-RateLimit-Limit"},
		{"[{name: ':status', value: 200}]", "2:18: \":status\" is not a valid header name: write letters, digits and - _ . only, such as X-RateLimit-Limit"},
		{"[{name: Transfer-Encoding, value: chunked}]", "2:18: \"Transfer-Encoding\" belongs to the connection or the body of an answer, and a rule file must not set it: leave it out"},
		{"[{name: a, value: {limit}}]", "2:28: `value` must be text, not a map: a value that starts with a { needs quotes, such as \"{remaining}\""},
		{`[{name: a, value: "{remain}"}]`, "2:28: unknown placeholder \"remain\": did you mean `remaining`?"},
		{`[{name: a, value: "{limit"}]`, "2:28: a { without a }: a placeholder is one of `{limit}`, `{capacity}`, `{used}`, `{used_percent}`, `{remaining}`, `{reset}`, `{reset_unix}`, `{window}`, `{name}` and `{retry_after}`; write {{ for a brace"},
		{`[{name: a, value: "limit}"}]`, "2:28: a } without a {: a placeholder is one of `{limit}`, `{capacity}`, `{used}`, `{used_percent}`, `{remaining}`, `{reset}`, `{reset_unix}`, `{window}`, `{name}` and `{retry_after}`; write }} for a brace"},
		{`[{name: a, value: "b\r\nset-cookie: c"}]`, `2:28: the header's value "b\r\nset-cookie: c" has a character that is not printable ASCII: leave it out`},
		{`[{name: a, value: "b "}]`, `2:28: the header's value "b " starts or ends with a space: leave it out`},
		{"[{name: a, value: " + strings.Repeat("v", 257) + "}]", "2:28: a header's value has at most 256 characters, this one has 257"},
		{"[{value: a, name: " + strings.Repeat("n", 129) + "}]", "2:28: a header's name has at most 128 characters, this one has 129"},
		{"[{name: a, value: b, when: over}]", "2:37: unknown `when` \"over\": write `passed` or `denied`"},
		{"[{name: a, value: b, of: []}]", "2:35: `of` is empty: write the `name` of a limit, or leave it out"},
		{"[{name: a, value: b, of: [x, x]}]", "2:39: \"x\" twice in `of`"},
		{`[{name: a, value: "{retry_after}", when: passed}]`, "2:11: `when: passed` and `{retry_after}`: a request that passes has none, so the header would never be sent; leave out one of them"},
		{"[{name: a, value: b}, {name: A, value: c, when: denied}]", "2:32: header \"a\" twice in the same answer: leave out one, or give them different `when` or `of`"},
		{"[{name: Retry-After, value: 5}, retry-after]", "2:10: `headers` has the family `retry-after`, which has a header \"Retry-After\" too: leave out one of them"},
		{"[" + strings.Join(seventeen, ", ") + "]", "2:10: `headers` defines 17 headers, 16 are the most: leave out the others"},
		{"[{name: X-RateLimit-Degraded, value: a}]", "2:18: the service sends \"X-RateLimit-Degraded\" itself, with another meaning: choose another name"},
		{"[{name: x-ratelimit-delay-ms, value: a}]", "2:18: the service sends \"x-ratelimit-delay-ms\" itself, with another meaning: choose another name"},
		{"[{name: a, value: '" + strings.Repeat("{name}", 9) + "'}]", "2:28: the header's value can become 1152 characters long, 1024 are the most: {name} can have 128; use fewer placeholders"},
		{"[{name: a, value: b, of: [" + strings.Repeat("n, ", 33) + "]}]", "2:35: `of` has 33 names, 32 are the most: give the limits that the header describes one name, or write two headers"},
	} {
		_, errs := Compile(filesOf("domain: d\nheaders: "+c.headers+"\n"), CompileOptions{})
		if len(errs) != 1 || errs[0].Error() != "a.yaml:"+c.want {
			t.Errorf("%s:\n got %v\nwant a.yaml:%s", c.headers, errs, c.want)
		}
	}
}

// One name may have a value for each kind of answer, and one for each limit.
func TestOneHeaderForEachAnswer(t *testing.T) {
	const text = "domain: d\nheaders: [{name: a, value: b, when: passed}, {name: a, value: c, when: denied}, {name: a, value: d, of: x}]\n"
	tree, errs := Compile(filesOf(text), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if own := tree.Domain("d").Headers.Own; len(own) != 3 {
		t.Errorf("%v", own)
	}
}

// Files of one domain may both have headers if they are the same, and trees with other headers have another checksum.
func TestHeadersOfSeveralFiles(t *testing.T) {
	const a, b = "domain: d\nheaders: [{name: a, value: '{limit}'}]\n", "domain: d\nheaders: [{name: a, value: '{used}'}]\n"
	if _, errs := Compile(filesOf(a, a), CompileOptions{Merge: true}); len(errs) > 0 {
		t.Error(errs)
	}
	if _, errs := Compile(filesOf(a, b), CompileOptions{Merge: true}); len(errs) != 1 || !strings.Contains(errs[0].Msg, "another `headers`") {
		t.Error(errs)
	}
	first, _ := Compile(filesOf(a), CompileOptions{})
	second, _ := Compile(filesOf(b), CompileOptions{})
	if first.Checksum == second.Checksum {
		t.Error("two values of a header have one checksum")
	}
}

// A long list has one error, and is not read.
func TestLongListsOfHeadersHaveOneError(t *testing.T) {
	names, headers := make([]string, 20_000), make([]string, 20_000)
	for i := range names {
		names[i], headers[i] = fmt.Sprint("n", i), fmt.Sprintf("{name: h%d, value: b}", i)
	}
	for _, c := range []struct{ headers, want string }{
		{"[{name: a, value: b, of: [" + strings.Join(names, ", ") + "]}]", "`of` has 20000 names"},
		{"[" + strings.Join(headers, ", ") + "]", "`headers` defines 20000 headers"},
	} {
		_, errs := Compile(filesOf("domain: d\nheaders: "+c.headers+"\n"), CompileOptions{})
		if len(errs) != 1 || !strings.Contains(fmt.Sprint(errs), c.want) {
			t.Errorf("%.200v, want %s alone", errs, c.want)
		}
	}
}

// Every header that a rule file can define can be sent, and is written as it was read.
func TestEveryHeaderCanBeSent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune("{}ab -\r\n\t:\x7f")), rapid.Rune())).Draw(rt, "text")
		if rapid.Bool().Draw(rt, "field") {
			text += "{" + rapid.SampledFrom(descriptor.HeaderFieldNames).Draw(rt, "name") + "}"
		}
		parts, err := parseHeaderValue(text)
		if err != nil {
			return
		}
		h := descriptor.OwnHeader{Name: "a", Text: parts}
		if h.Value() != text || !httpguts.ValidHeaderFieldValue(text) {
			rt.Errorf("%q is read as %q", text, h.Value())
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune("aB9-_.: \n")), rapid.Rune())).Draw(rt, "name")
		if wholeName.MatchString(name) && (!httpguts.ValidHeaderFieldName(name) || http.CanonicalHeaderKey(name) == "") {
			rt.Errorf("%q is no header's name", name)
		}
	})
}
