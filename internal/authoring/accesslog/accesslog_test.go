package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
)

func parse(t testing.TB, text string) *accesslog.Mapping {
	t.Helper()
	m, errs := accesslog.ParseMapping("m.yaml", []byte(text))
	for _, e := range errs {
		t.Error(e)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	return m
}

// requests reads a log and returns the requests of its lines in words, one per line.
func requests(t testing.TB, m *accesslog.Mapping, log string) []string {
	t.Helper()
	r, err := m.NewReader(strings.NewReader(log))
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for {
		rec, err := r.Next()
		var bad *accesslog.LineError
		switch {
		case errors.Is(err, io.EOF):
			return all
		case errors.As(err, &bad):
			all = append(all, "bad "+err.Error())
			continue
		case err != nil:
			return append(all, "fatal "+err.Error())
		}
		fields := make([]string, m.Fields())
		for i, f := range rec.Fields {
			fields[i] = string(f)
		}
		var arena accesslog.Arena
		var req accesslog.Request
		if !m.Build(fields, rec.Hits, &arena, &req) {
			all = append(all, fmt.Sprintf("%d asks nothing", rec.Line))
			continue
		}
		text := fmt.Sprintf("%d %s %s", rec.Line, time.UnixMicro(rec.At).UTC().Format("2006-01-02T15:04:05.999999Z"), req.Domain)
		for _, d := range req.Descriptors {
			text += " ("
			for i, e := range d.Entries {
				if i > 0 {
					text += ", "
				}
				text += e.Key + "=" + e.Value
			}
			text += ")"
			if d.HasHits {
				text += fmt.Sprintf(" x%d", d.Hits)
			}
		}
		all = append(all, text+" by "+string(req.Customer))
	}
}

func check(t *testing.T, mapping, log string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, requests(t, parse(t, mapping), log)); diff != "" {
		t.Errorf("of the log\n%.2000s(-want +got):\n%.5000s", log, diff)
	}
}

const envoyLine = `[2026-03-01T12:00:00.123Z] "GET /api?q=1 HTTP/1.1" 200 - 0 1234 12 11 "203.0.113.7, 10.0.0.1" "Mozilla/5.0" "5f1b" "api.example.com" "10.1.2.3:8080"` + "\n"

func TestEnvoyDefaultFormat(t *testing.T) {
	check(t, `
format: envoy
domain: {header: ":authority"}
descriptors:
  - [{key: path, header: ":path", part: path}, {key: method, header: ":METHOD"}]
  - [{key: client, header: x-forwarded-for, part: first}]
  - [{key: proxy, header: x-forwarded-for, part: last}]
  - [{key: code, field: RESPONSE_CODE}, {key: upstream, field: upstream_host, part: address}]
  - [{key: flags, field: RESPONSE_FLAGS}]
`, envoyLine,
		"1 2026-03-01T12:00:00.123Z api.example.com (path=/api, method=GET) (client=203.0.113.7) (proxy=10.0.0.1) (code=200, upstream=10.1.2.3)"+
			" by path=/api, method=GET, client=203.0.113.7, proxy=10.0.0.1, code=200, upstream=10.1.2.3")
}

// Text from a client must not move the fields after it: its line is rejected instead.
func TestQuotesWithinText(t *testing.T) {
	mapping := "format: envoy\ndomain: d\ndescriptors: [[{key: host, header: ':authority'}]]\n"
	forged := func(agent string) string { return strings.Replace(envoyLine, "Mozilla/5.0", agent, 1) }
	check(t, mapping, envoyLine, "1 2026-03-01T12:00:00.123Z d (host=api.example.com) by host=api.example.com")
	for _, agent := range []string{`x"y`, `x" "y`, `x" "" "forged.example.com" "z`, `"`} {
		got := requests(t, parse(t, mapping), forged(agent))
		if len(got) != 1 || !strings.HasPrefix(got[0], "bad line 1: ") {
			t.Errorf("with the user agent %s: %q", agent, got)
		}
	}
}

func TestTextPattern(t *testing.T) {
	check(t, `
format: text
pattern: '%CLIENT% - %USER% [%TIME%] "%METHOD% %PATH% %PROTOCOL%" %STATUS% %START_TIME(%s.%3f)% 100%% %REQ(X-A?:B):12%;'
time: {field: TIME, layout: clf}
domain: d
descriptors: [[{key: user, field: USER}, {key: epoch, field: START_TIME}, {key: header, header: ":b"}]]
`, `1.2.3.4 - tom [01/Mar/2026:21:00:00 +0900] "GET / HTTP/1.1" 200 1772366400.123 100% v v;
1.2.3.4 - - [01/Mar/2026:21:00:00 +0900] "GET / HTTP/1.1" 200 1772366400.123 100% v;

1.2.3.4 - tom [01/Mar/2026:21:00:00 +0900] "GET / HTTP/1.1" 200 1772366400.123 100% v
x
`,
		"1 2026-03-01T12:00:00Z d (user=tom, epoch=1772366400.123, header=v v) by user=tom, epoch=1772366400.123, header=v v",
		"2 asks nothing",
		`bad line 4: there is no ";" after REQ(X-A?:B), as the pattern says`,
		`bad line 5: there is no " - " after CLIENT, as the pattern says`)
}

func TestJSONLines(t *testing.T) {
	check(t, `
format: json
time: {field: at, layout: unix_ms}
domain: d
descriptors:
  - [{key: user, field: 'request.headers.x\.user'}]
  - [{key: n, field: n}, {key: b, field: b}]
`, `{"at": 1772366400500, "request": {"headers": {"x.user": "t\u00e9 \"q\"", "other": [1, {"x.user": 2}]}}, "n": -1.5e3, "b": true}
 { "b" : false , "n":null,"at":"1772366400500","request":{"headers":{"x.user":"a","x.user":"b"}}}

{"at":1772366400500,"request":{"headers":{"x.user":"-"}},"n":"","b":"x"}
{"at":1772366400500,"n":{}}
{"at":1772366400500,"n":["a"]}
{"at":1772366400500,"n":01}
{"at":1772366400500} x
{"n":"x"}
["at"]
{"at":"yesterday","n":1}
{"at":1772366400500,"n":"a`+"\xff"+`"}
{"at":1772366400500,"b":"`+strings.Repeat("x", 65537)+`"}
`,
		`1 2026-03-01T12:00:00.5Z d (user=té "q") (n=-1.5e3, b=true) by user=té "q", n=-1.5e3, b=true`,
		"2 2026-03-01T12:00:00.5Z d (user=b) by user=b, b=false",
		"4 asks nothing",
		`bad line 5: "n" is an object, which is not a single value`,
		`bad line 6: "n" is a list, which is not a single value`,
		"bad line 7: not a JSON object: column 26 is not as it must be",
		"bad line 8: not a JSON object: column 22 is not as it must be",
		`bad line 9: there is no time: "at" is absent`,
		"bad line 10: not a JSON object: column 1 is not as it must be",
		`bad line 11: "yesterday" is not a time like 1772366400500 (unix_ms)`,
		`bad line 12: "n" is not UTF-8, and the service takes nothing else: "a\xff"`,
		`bad line 13: "b" has 65537 bytes: the service takes no value of more than 65536`)
}

func TestValues(t *testing.T) {
	mapping := func(value string) string {
		return "format: json\ntime: {field: t, layout: unix}\ndomain: d\ndescriptors: [[{key: k, " + value + "}]]\n"
	}
	for _, c := range []struct{ value, line, want string }{
		{"value: all", `{"t":1}`, "k=all"},
		{"field: v", `{"t":1,"v":"x"}`, "k=x"},
		{"field: v, default: other", `{"t":1}`, "k=other"},
		{"field: v, part: address", `{"t":1,"v":"1.2.3.4:80"}`, "k=1.2.3.4"},
		{"field: v, part: address", `{"t":1,"v":"[2001:db8::1]:80"}`, "k=2001:db8::1"},
		{"field: v, part: address", `{"t":1,"v":"2001:db8::1"}`, "k=2001:db8::1"},
		{"field: v, part: path", `{"t":1,"v":"/a/b?c#d"}`, "k=/a/b"},
		{"field: v, part: first", `{"t":1,"v":" a , b"}`, "k=a"},
		{"field: v, part: last", `{"t":1,"v":"a, b "}`, "k=b"},
		{`field: v, regex: "^/(v[0-9]+)/"`, `{"t":1,"v":"/v2/x"}`, "k=v2"},
		{`field: v, regex: "v[0-9]+"`, `{"t":1,"v":"/v2/x"}`, "k=v2"},
		{`field: v, regex: "^/(v[0-9]+)/", default: none`, `{"t":1,"v":"/x"}`, "k=none"},
		{`field: v, part: path, regex: "[^/]+$"`, `{"t":1,"v":"/v2/x?/y"}`, "k=x"},
		{"field: v, skip_if_absent: true}, {key: l, value: x", `{"t":1}`, "l=x"},
	} {
		got := requests(t, parse(t, mapping(c.value)), c.line+"\n")
		if len(got) != 1 || !strings.Contains(got[0], "("+c.want+")") {
			t.Errorf("%s of %s: %q, want %s", c.value, c.line, got, c.want)
		}
	}
	for _, value := range []string{"field: v", `field: v, regex: "x(y)?"`, "field: v, part: last"} {
		if got := requests(t, parse(t, mapping(value)), `{"t":1,"v":"x,"}`+"\n"+`{"t":1}`+"\n"); got[len(got)-1] != "2 asks nothing" {
			t.Errorf("%s: %q", value, got)
		}
	}
}

func TestConditionsHitsCustomer(t *testing.T) {
	check(t, `
format: json
time: {field: t, layout: unix}
domain: {field: d, default: other}
when:
  - {field: path, matches: "^/health", not: true}
  - {field: path, present: true}
descriptors:
  - entries: [{key: m, field: m}]
    when: {field: m, is: [GET, HEAD]}
  - entries: [{key: up, field: path}]
    when: {field: bytes, present: true}
    hits: bytes
hits: {field: cost, default: 2}
customer: {field: user}
`, `{"t":1,"path":"/","m":"GET","user":"tom"}
{"t":1,"path":"/","m":"POST","bytes":7,"d":"up","cost":5}
{"t":1,"path":"/","m":"HEAD","bytes":0,"cost":5}
{"t":1,"path":"/healthz","m":"GET"}
{"t":1,"m":"GET"}
{"t":1,"path":"/","m":"GET","cost":-1}
{"t":1,"path":"/","m":"GET","cost":4294967296}
`,
		"1 1970-01-01T00:00:01Z other (m=GET) x2 by tom",
		"2 1970-01-01T00:00:01Z up (up=/) x7 by (none)",
		"3 1970-01-01T00:00:01Z other (m=HEAD) x5 (up=/) x0 by (none)",
		"4 asks nothing",
		"5 asks nothing",
		`bad line 6: hits must be a whole number up to 4294967295, "cost" is "-1"`,
		`bad line 7: hits must be a whole number up to 4294967295, "cost" is "4294967296"`)
}

// The id of a reservation is not part of the customer: each reservation has a different id.
func TestReservationsAreNoCustomers(t *testing.T) {
	check(t, `
format: json
time: {field: t, layout: unix}
domain: d
descriptors:
  - entries: [{key: user, field: user}, {key: reserve_id, field: id}]
    when: {field: first, present: true}
  - entries: [{key: user, field: user}, {key: commit_id, field: id}]
`, `{"t":1,"user":"tom","id":"a","first":1}
{"t":2,"user":"tom","id":"b"}
`,
		"1 1970-01-01T00:00:01Z d (user=tom, reserve_id=a) (user=tom, commit_id=a) by user=tom",
		"2 1970-01-01T00:00:02Z d (user=tom, commit_id=b) by user=tom")
}

func TestTimes(t *testing.T) {
	for _, c := range []struct{ time, written, want string }{
		{"t", "2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"},
		{"t", "2026-03-01 12:00:00.123456789+09:00", "2026-03-01T03:00:00.123456Z"},
		{"t", "2024-02-29t23:59:59,5z", "2024-02-29T23:59:59.5Z"},
		{"t", "2026-03-01T12:00:00-0330", "2026-03-01T15:30:00Z"},
		{"t", "2026-03-01T12:00:00", "has no time zone: give the mapping's time a `zone`"},
		{"t", "2026-02-29T12:00:00Z", "is not a time like"},
		{"t", "2026-13-01T12:00:00Z", "is not a time like"},
		{"t", "2026-03-01T24:00:00Z", "is not a time like"},
		{"t", "2026-03-01T12:60:00Z", "is not a time like"},
		{"t", "2026-03-01T12:00:00+24:00", "is not a time like"},
		{"t", "2026-03-01T12:00:00.Z", "is not a time like"},
		{"t", "2026-03-01", "is not a time like"},
		{"t", "1969-12-31T23:59:59Z", "does not lie between 1970 and 2200"},
		{"t", "2200-01-01T00:00:00Z", "does not lie between 1970 and 2200"},
		{"{field: t, zone: Asia/Seoul}", "2026-03-01T12:00:00", "2026-03-01T03:00:00Z"},
		{"{field: t, zone: America/New_York}", "2026-07-01 12:00:00", "2026-07-01T16:00:00Z"},
		{"{field: t, zone: UTC}", "2026-07-01 12:00:00", "2026-07-01T12:00:00Z"},
		{"{field: t, layout: unix}", "1772366400", "2026-03-01T12:00:00Z"},
		{"{field: t, layout: unix}", "1772366400.1234567", "2026-03-01T12:00:00.123456Z"},
		{"{field: t, layout: unix}", "99999999999999999999", "is not a time like"},
		{"{field: t, layout: unix}", "1772366400.", "is not a time like"},
		{"{field: t, layout: unix_ms}", "1772366400123.4", "2026-03-01T12:00:00.1234Z"},
		{"{field: t, layout: unix_us}", "1772366400123456", "2026-03-01T12:00:00.123456Z"},
		{"{field: t, layout: unix_ns}", "1772366400123456789", "2026-03-01T12:00:00.123456Z"},
		{"{field: t, layout: unix_ns}", "x", "is not a time like"},
		{"{field: t, layout: clf}", "01/Mar/2026:12:00:00 +0000", "2026-03-01T12:00:00Z"},
		{"{field: t, layout: clf}", "01/Mrz/2026:12:00:00 +0000", "is not a time like"},
		{"{field: t, layout: clf}", "31/Apr/2026:12:00:00 +0000", "is not a time like"},
		{"{field: t, layout: clf}", "01/Mar/2026:12:00:00", "has no time zone"},
		{"{field: t, layout: clf, zone: UTC}", "01/Mar/2026:12:00:00", "2026-03-01T12:00:00Z"},
		{"{field: t, layout: '02.01.2006 15:04:05', zone: Europe/Berlin}", "01.07.2026 12:00:00", "2026-07-01T10:00:00Z"},
		{"{field: t, layout: 'Jan _2 2006 15:04:05.000 -0700'}", "Jul  1 2026 12:00:00.250 +0200", "2026-07-01T10:00:00.25Z"},
		{"{field: t, layout: 'Jan _2 2006 15:04:05.000 -0700'}", "July 1", "is not a time like Jan _2"},
	} {
		m := parse(t, "format: json\ntime: "+c.time+"\ndomain: d\ndescriptors: [[{key: k, value: v}]]\n")
		for range 2 { // the second time the day is known
			got := requests(t, m, fmt.Sprintf("{\"t\":%q}\n", c.written))
			if len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("%s as %s: %q, want %s", c.written, c.time, got, c.want)
			}
		}
	}
}

func TestGzip(t *testing.T) {
	var packed bytes.Buffer
	for range 2 { // logrotate appends them like this
		w := gzip.NewWriter(&packed)
		_, _ = w.Write([]byte("{\"t\":1}\n"))
		_ = w.Close()
	}
	m := parse(t, "format: json\ntime: {field: t, layout: unix}\ndomain: d\ndescriptors: [[{key: k, value: v}]]\n")
	if got := requests(t, m, packed.String()); len(got) != 2 {
		t.Errorf("%q", got)
	}
	if got := requests(t, m, packed.String()[:packed.Len()-9]); len(got) != 3 || !strings.Contains(got[2], "fatal unexpected EOF") {
		t.Errorf("of a log that was cut off: %q", got)
	}
	if got := requests(t, m, "\x1f\x8bnone"); len(got) != 1 || !strings.Contains(got[0], "unpack: ") {
		t.Errorf("%q", got)
	}
}

func TestLongLines(t *testing.T) {
	m := parse(t, "format: json\ntime: {field: t, layout: unix}\ndomain: d\ndescriptors: [[{key: k, value: v}]]\n")
	long := `{"x":"` + strings.Repeat("y", 1<<20) + `"}`
	for _, last := range []string{"", "\n"} {
		got := requests(t, m, "{\"t\":1}\n"+long+"\n{\"t\":3}\n"+long+last)
		want := []string{"1 1970-01-01T00:00:01Z d (k=v) by (all)", "bad line 2: longer than 1 MiB", "3 1970-01-01T00:00:03Z d (k=v) by (all)", "bad line 4: longer than 1 MiB"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestMissedFields(t *testing.T) {
	m := parse(t, "format: json\ntime: {field: t, layout: unix}\ndomain: d\ndescriptors: [[{key: k, field: usre}], [{key: l, field: user}]]\n")
	var missed accesslog.Missed
	for _, log := range []string{"{\"t\":1}\n", "{\"t\":1,\"user\":\"x\"}\n"} {
		r, err := m.NewReader(strings.NewReader(log))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		missed.Add(r)
	}
	errs := missed.Errors(m)
	if len(errs) != 1 || errs[0].Error() != `m.yaml:4:32: no line of the log has a field "usre"` {
		t.Error(errs)
	}
}

// A line costs no memory, unless a library makes a map of it.
func TestLinesNeedNoMemory(t *testing.T) {
	const lines = 2000
	for name, c := range map[string]struct{ mapping, line string }{
		"envoy": {"format: envoy\ndomain: d\ndescriptors: [[{key: c, header: x-forwarded-for, part: first}]]\n", envoyLine},
		"json":  {"format: json\ntime: t\nhits: n\ndomain: d\ndescriptors: [[{key: c, field: a.b}]]\n", "{\"t\":\"2026-03-01T12:00:00Z\",\"a\":{\"b\":\"x\"},\"n\":3}\n"},
		"clf":   {"format: text\npattern: '%T%;%C%'\ntime: {field: T, layout: clf}\ndomain: d\ndescriptors: [[{key: c, field: C}]]\n", "01/Mar/2026:12:00:00 +0000;x\n"},
	} {
		m := parse(t, c.mapping)
		log := strings.Repeat(c.line, lines)
		fields := make([]string, m.Fields())
		for i := range fields {
			fields[i] = "1"
		}
		var arena accesslog.Arena
		var req accesslog.Request
		allocs := testing.AllocsPerRun(3, func() {
			r, err := m.NewReader(strings.NewReader(log))
			if err != nil {
				t.Fatal(err)
			}
			for {
				rec, err := r.Next()
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					return
				}
				arena.Reset()
				if !m.Build(fields, rec.Hits, &arena, &req) {
					t.Fatal("asks nothing")
				}
			}
		})
		most := 50.0
		if name == "json" {
			most += 30 * lines // encoding/json makes a map of each object
		}
		if allocs > most {
			t.Errorf("%s: %v allocations for %d lines", name, allocs, lines)
		}
	}
}
