package yamlform

import (
	"strings"
	"testing"
)

// Every known text of the library has a test: the message and its position.
func TestSyntaxMessages(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range []struct {
		known, file, want string
	}{
		{"unknown anchor", "a: 1\nb: *foo\nc: 2\n", "f:2:4: not YAML: unknown anchor 'foo' referenced: if the * is part of a value, put the value in quotes"},
		{"unknown anchor", "a: [x,\n  éé*foo, *foo]\n", "f:2:11: not YAML: unknown anchor 'foo' referenced"},
		{"did not find expected alphabetic or numeric", "a:\n  b: *\n", "f:2:1: not YAML: did not find expected alphabetic or numeric character: a value that starts with * or & must stand in quotes"},
		{"did not find expected '-'", "- a\nb: c\n", "f:2:1: not YAML: did not find expected '-' indicator: keys of one map, and dashes of one list, must start in the same column"},
		{"did not find expected key", "a:\n  b: 1\n c: 2\n", "f:3:1: not YAML: did not find expected key: keys of one map, and dashes of one list, must start in the same column"},
		{"did not find expected ',' or", "a: 1\nb: {c: 1\nd: 2\n", "f:2:4: not YAML: did not find expected ',' or '}': the bracket that opens here is not closed"},
		{"did not find expected ',' or", "a: {b: 1,\n  c: 2\n  d: 3}\n", "f:3:1: not YAML: did not find expected ',' or '}': close the bracket, and put commas between entries"},
		{"did not find expected ',' or", "a: {b: '{', c: [1, 2}\nd: 1 # {\n", "f:1:16: not YAML: did not find expected ',' or ']': the bracket that opens here is not closed"},
		{"did not find expected ',' or", "- [a\n- b\n", "f:1:3: not YAML: did not find expected ',' or ']'"},
		{"did not find expected", "a: ]\n", "f:1:1: not YAML: did not find expected node content"},
		{"could not find expected ':'", "a: 1\nb\nc: 2\n", "f:3:1: not YAML: could not find expected ':': write `key: value`, with a space after the colon"},
		{"found a tab character", "a:\n  b: 1\n\tc: 2\n", "f:3:1: not YAML: found a tab character that violates indentation: a tab cannot indent: use spaces"},
		{"mapping values are not allowed", "a: 1\nb: c: d\n", "f:2:1: not YAML: mapping values are not allowed in this context: check the indentation of this line and of the one above, or put a value that contains a colon in quotes"},
		{"found character that cannot start any token", "a: 1\nb: @x\n", "f:2:1: not YAML: found character that cannot start any token: put a value that starts with @, ` or % in quotes"},
		{"found character that cannot start any token", "a:\n\t- b\n", "f:2:1: not YAML: found character that cannot start any token: a tab cannot indent: use spaces"},
		{"found unexpected end of stream", "a: 1\nb: \"c\nd: e\n", "f:2:1: not YAML: found unexpected end of stream: a quote is opened here and not closed"},
		{"found unexpected end of stream", "a: \"b\n", "f:1:1: not YAML: found unexpected end of stream"},
		{"found unknown escape character", "a: 1\nb: \"\\d\"\n", "f:2:1: not YAML: found unknown escape character: in double quotes write \\\\ for a backslash, or use single quotes"},
		{"control characters are not allowed", "a: 1\nb: é\x01\n", "f:2:5: not YAML: control characters are not allowed"},
		{"invalid leading UTF-8 octet", "a: 1\nb: \xff\n", "f:2:4: not YAML: invalid leading UTF-8 octet"},
		{"invalid trailing UTF-8 octet", "a: 1\nbb: \xc3(\n", "f:2:5: not YAML: invalid trailing UTF-8 octet"},
		{"incomplete UTF-8 octet sequence", "a: 1\nb: \xc3", "f:2:4: not YAML: incomplete UTF-8 octet sequence"},
		{"invalid length of a UTF-8 sequence", "a: 1\nb: \xc0\x80\n", "f:2:4: not YAML: invalid length of a UTF-8 sequence"},
		{"invalid Unicode character", "a: 1\nb: \xed\xa0\x80\n", "f:2:4: not YAML: invalid Unicode character"},
	} {
		seen[c.known] = true
		r := NewReader("f", Options{})
		r.Parse([]byte(c.file))
		errs := r.Errors()
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), c.want) {
			t.Errorf("%q\ngives %v\nwant  %s", c.file, errs, c.want)
		}
	}
	for _, m := range syntaxMessages {
		if !seen[m.text] {
			t.Errorf("no test shows what becomes of %q", m.text)
		}
	}
}

// A syntax error keeps the documents before it, and lines end where YAML ends them.
func TestSyntaxErrorPosition(t *testing.T) {
	r := NewReader("f", Options{})
	if docs := r.Parse([]byte("\ufeffa: 1\r\n---\r\nb: é\r\nc: *d\r\n")); len(docs) != 1 || !docs[0].IsMap() {
		t.Errorf("%d documents before the error", len(docs))
	}
	if errs := r.Errors(); len(errs) != 1 || errs[0].Line != 4 || errs[0].Col != 4 {
		t.Errorf("%v", errs)
	}
}
