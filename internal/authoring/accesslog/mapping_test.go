package accesslog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
)

const rest = "domain: d\ndescriptors: [[{key: k, value: v}]]\n"

func TestMappingErrors(t *testing.T) {
	for _, c := range []struct {
		mapping string
		want    []string // all of the errors, each a part
	}{
		{"", []string{"m.yaml:1:1: nothing in this file: write `format`, `domain` and `descriptors`"}},
		{"a: [", []string{"m.yaml:1:1: not YAML: did not find expected node content"}},
		{"format: json\n\tdomain: d\n", []string{"m.yaml:2:1: not YAML: found a tab character that violates indentation: a tab cannot indent: use spaces"}},
		{"a: 1\n---\nb: 2", []string{"m.yaml:3:1: a second YAML document"}},
		{"- x", []string{"m.yaml:1:1: a mapping must be a map of keys (`format`, `pattern`,"}},
		{rest, []string{"m.yaml:1:1: no `format`: write `envoy`, `nginx`, `apache`, `text` or `json`"}},
		{"formt: json\n" + rest, []string{"m.yaml:1:1: unknown key `formt`: did you mean `format`?"}},
		{"format: jsn\n" + rest, []string{"m.yaml:1:9: unknown `format` \"jsn\": did you mean `json`?"}},
		{"format: xml\n" + rest, []string{"m.yaml:1:9: unknown `format` \"xml\": write `envoy`, `nginx`, `apache`, `text` or `json`"}},
		{"format: json\nformat: json\ntime: t\n" + rest, []string{"m.yaml:2:1: key `format` twice in one map: the first is on line 1"}},
		{"format: json\nentries: 1\ntime: t\n" + rest, []string{"m.yaml:2:1: `entries` does not belong in a mapping: it is a key of a descriptor"}},
		{"format: json\n" + rest, []string{"m.yaml:1:1: no `time`: write the field that says when a request happened"}},
		{"format: json\ntime: t\n", []string{"m.yaml:1:1: no `domain`", "m.yaml:1:1: `descriptors` must be a list"}},
		{"format: text\n" + rest, []string{"m.yaml:1:9: the format `text` needs a `pattern`"}},
		{"format: text\npattern: no\n" + rest, []string{"m.yaml:2:10: `pattern`: there is no %OPERATOR% in it"}},
		{"format: text\npattern: '%A%%B%'\n" + rest, []string{"m.yaml:2:10: `pattern`: nothing stands between %A% and %B%"}},
		{"format: text\npattern: '%A% %B('\n" + rest, []string{"m.yaml:2:10: `pattern`: the operator that starts with \"%B(\" has no end"}},
		{"format: text\npattern: '50% of'\n" + rest, []string{"m.yaml:2:10: `pattern`: the operator that starts with \"% of\" has no end: a percent sign itself is written %%"}},
		{"format: text\npattern: '%TIME% %REQ(A)% %REQ(B)%'\ntime: TMIE\ndomain: {field: REQ}\ndescriptors: [[{key: k, header: c}]]\n", []string{
			"m.yaml:3:7: the pattern has no operator \"TMIE\": did you mean `TIME`?",
			"m.yaml:4:17: several operators of the pattern are called \"REQ\"",
			"m.yaml:5:33: the pattern has no %REQ(C)%: the log does not have this header"}},
		{"format: json\npattern: x\ntime: t\n" + rest, []string{
			"m.yaml:2:10: `pattern` is for the formats `envoy`, `text` and `nginx`, not `json`"}},
		{"format: json\ntime: {field: t, layout: rfc}\n" + rest, []string{"m.yaml:2:26: `layout` \"rfc\" does not have date and time to the second: write `rfc3339`, `unix`"}},
		{"format: json\ntime: {field: t, layout: rfc333}\n" + rest, []string{"m.yaml:2:26: unknown `layout` \"rfc333\": did you mean `rfc3339`?"}},
		{"format: json\ntime: {field: t, layout: '2006-01-02 15:04'}\n" + rest, []string{"m.yaml:2:26: `layout` \"2006-01-02 15:04\" does not have date and time to the second"}},
		{"format: json\ntime: {field: t, layout: '2006/01/02 15:04:05'}\n" + rest, []string{"m.yaml:2:26: `layout` \"2006/01/02 15:04:05\" does not have a time zone: add a `zone`"}},
		{"format: json\ntime: {field: t, zone: Mars/Base}\n" + rest, []string{"m.yaml:2:24: unknown time zone \"Mars/Base\""}},
		{"format: json\ntime: {feild: t}\n" + rest, []string{"m.yaml:2:7: no `field` in `time`", "m.yaml:2:8: unknown key `feild`: did you mean `field`?"}},
		{"format: json\ntime: t\ndomain: ''\ndescriptors: []\n", []string{"m.yaml:3:9: `domain` is empty", "m.yaml:4:14: `descriptors` must be a list"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors: [[]]\n", []string{"m.yaml:4:15: a descriptor is a list of entries"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors: [{when: {field: x, present: true}}]\n", []string{"m.yaml:4:15: a descriptor is a list of entries"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors: [[k]]\n", []string{"m.yaml:4:16: an entry must be a map of keys (`key`, `value`,"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors:\n- [{key: k}, {value: v}, {key: '', value: ''}, {key: k, field: a, value: b}, {key: k, header: h}]\n", []string{
			"m.yaml:5:4: an entry has one of `field`, `header` and `value`, this has 0",
			"m.yaml:5:14: an entry without a `key`",
			"m.yaml:5:32: `key` is empty",
			"m.yaml:5:43: `value` is empty",
			"m.yaml:5:48: an entry has one of `field`, `header` and `value`, this has 2",
			"m.yaml:5:95: `header` is for the formats `envoy`, `text`, `nginx` and `apache`"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors:\n- [{key: k, value: v, part: path}, {key: k, field: f, part: pth}, {key: k, field: f, regex: '('}, {key: k, field: f, skip_if_absent: maybe}]\n", []string{
			"m.yaml:5:29: `part`, `regex` and `default` are for values from the log, not for a `value`",
			"m.yaml:5:61: unknown `part` \"pth\": did you mean `path`?",
			"m.yaml:5:93: `regex`: error parsing regexp: missing closing )",
			"m.yaml:5:134: `skip_if_absent` must be true or false, not the text \"maybe\""}},
		{"format: json\ntime: t\nhits: {default: many}\n" + rest, []string{"m.yaml:3:17: `default` must be a whole number from 0 to 4294967295, not the text \"many\""}},
		{"format: json\ntime: t\nhits: {}\n" + rest, []string{"m.yaml:3:7: `hits` has neither a `field` nor a `default`"}},
		{"format: json\ntime: t\nwhen: [{field: x}, {field: x, is: a, present: true}, {field: x, is: []}, x]\n" + rest, []string{
			"m.yaml:3:8: a condition has one of `is`, `matches` and `present`, this has 0",
			"m.yaml:3:20: a condition has one of `is`, `matches` and `present`, this has 2",
			"m.yaml:3:69: `is` names no value",
			"m.yaml:3:74: a condition must be a map of keys"}},
		{"format: json\ntime: t\ncustomer: x\n" + rest, []string{"m.yaml:3:11: a value must be a map of keys"}},
		{"format: json\ntime: t\ndomain: d\ndescriptors: &a [*a]\n", []string{"m.yaml:4:18: the alias *a stands within its own anchor"}},
	} {
		m, errs := accesslog.ParseMapping("m.yaml", []byte(c.mapping))
		ok := len(errs) == len(c.want) && m == nil
		for i := range min(len(errs), len(c.want)) {
			ok = ok && strings.HasPrefix(errs[i].Error(), c.want[i])
		}
		if !ok {
			t.Errorf("the mapping\n%s\ngives %q\nwant %q", c.mapping, errs, c.want)
		}
	}
}

// Anchors, merge keys and nulls have the same meaning in mappings as in rules.
func TestMappingAnchors(t *testing.T) {
	const plain = `format: json
time: {field: t, layout: unix}
domain: d
descriptors:
  - [{key: path, field: p, part: path, default: none}]
  - [{key: user, field: p, part: path, default: none}]
  - [{key: code, field: c}]
when: [{field: c, is: ["1.5", "200"]}]
`
	const anchored = `format: json
pattern: # null, as if it were absent
<<: {domain: other, time: &time {layout: unix, field: t}}
domain: d
descriptors:
  - [&path {key: path, field: p, <<: &from {part: path, default: none}}]
  - [{<<: [{key: user}, *path]}]
  - - {key: code, field: c, part: ~, regex: null}
when: [{field: c, is: [1.5, 200], not: }]
hits: ~
`
	var built [2]string
	for i, text := range []string{plain, anchored} {
		m, errs := accesslog.ParseMapping("m.yaml", []byte(text))
		if len(errs) > 0 {
			t.Fatalf("%s\n%q", text, errs)
		}
		r, err := m.NewReader(strings.NewReader(`{"t":1772366400,"p":"/a?b","c":200}` + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		record, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		fields := make([]string, m.Fields())
		for i, f := range record.Fields {
			fields[i] = string(f)
		}
		var arena accesslog.Arena
		var req accesslog.Request
		if !m.Build(fields, record.Hits, &arena, &req) {
			t.Fatalf("%s\nbuilds no request", text)
		}
		built[i] = fmt.Sprintf("%+v", req)
	}
	if built[0] != built[1] {
		t.Errorf("with anchors %s\nwithout      %s", built[1], built[0])
	}
}

func TestLoadMapping(t *testing.T) {
	name := filepath.Join(t.TempDir(), "m.yaml")
	if _, errs := accesslog.LoadMapping(name); len(errs) != 1 || !strings.Contains(errs[0].Error(), "cannot be read") {
		t.Error(errs)
	}
	if err := os.WriteFile(name, []byte("#"+strings.Repeat("x", 1<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs := accesslog.LoadMapping(name); len(errs) != 1 || !strings.Contains(errs[0].Error(), "too long for a mapping") {
		t.Error(errs)
	}
	if err := os.WriteFile(name, []byte("format: json\ntime: t\n"+rest), 0o644); err != nil {
		t.Fatal(err)
	}
	if m, errs := accesslog.LoadMapping(name); m == nil || len(errs) > 0 {
		t.Error(errs)
	}
}
