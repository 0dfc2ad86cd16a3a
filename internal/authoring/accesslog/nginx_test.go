package accesslog_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
)

const webMapping = `
domain: edge
descriptors:
  - [{key: client, field: remote_addr}, {key: user, field: remote_user, skip_if_absent: true}]
  - [{key: method, header: ":method"}, {key: path, header: ":path", part: path}]
  - [{key: agent, header: user-agent}]
`

// nginx's own format, in lines that nginx 1.22 of Debian wrote: requests, a user with quotes and a letter that is not
// ASCII in the user agent, bytes of TLS, a request without a protocol, one with a blank in its path, one without a
// request line.
func TestNginxCombined(t *testing.T) {
	check(t, "format: nginx"+webMapping, `127.0.0.1 - - [22/Nov/2026:14:59:46 +0000] "GET /a?b=c HTTP/1.1" 404 153 "-" "curl/7.88.1"
127.0.0.1 - ann [22/Nov/2026:14:59:46 +0000] "GET /x HTTP/1.1" 404 153 "-" "a\x22b\x5C\xC3\xA9"
127.0.0.1 - - [22/Nov/2026:14:59:47 +0000] "\x16\x03\x01\x00\xEE" 400 157 "-" "-"
127.0.0.1 - - [22/Nov/2026:14:59:47 +0000] "GET /" 403 153 "-" "-"
127.0.0.1 - - [22/Nov/2026:14:59:47 +0000] "GET /x y HTTP/1.1" 400 157 "-" "-"
127.0.0.1 - - [22/Nov/2026:14:59:48 +0000] "" 400 0 "-" "-"
127.0.0.1 - - [22/Nov/2026:14:59:48 +0000] "GET /\x22q\x5C HTTP/1.1" 404 153 "-" "-"
`,
		"1 2026-11-22T14:59:46Z edge (client=127.0.0.1) (method=GET, path=/a) (agent=curl/7.88.1) by client=127.0.0.1, method=GET, path=/a, agent=curl/7.88.1",
		`2 2026-11-22T14:59:46Z edge (client=127.0.0.1, user=ann) (method=GET, path=/x) (agent=a"b\é) by client=127.0.0.1, user=ann, method=GET, path=/x, agent=a"b\é`,
		"3 2026-11-22T14:59:47Z edge (client=127.0.0.1) by client=127.0.0.1",
		"4 2026-11-22T14:59:47Z edge (client=127.0.0.1) (method=GET, path=/) by client=127.0.0.1, method=GET, path=/",
		"5 2026-11-22T14:59:47Z edge (client=127.0.0.1) (method=GET, path=/x y) by client=127.0.0.1, method=GET, path=/x y",
		"6 2026-11-22T14:59:48Z edge (client=127.0.0.1) by client=127.0.0.1",
		`7 2026-11-22T14:59:48Z edge (client=127.0.0.1) (method=GET, path=/"q\) by client=127.0.0.1, method=GET, path=/"q\`)
}

// A log_format is written as nginx.conf has it between the quotes.
func TestNginxLogFormat(t *testing.T) {
	const line = `[1772366400.123] "GET /x HTTP/1.1" api.example.com "198.51.100.7" t=0.002;` + "\n"
	const want = "1 2026-03-01T12:00:00.123Z d (host=api.example.com, for=198.51.100.7, path=/x, took=0.002) by host=api.example.com, for=198.51.100.7, path=/x, took=0.002"
	for _, pattern := range []string{
		`'[$msec] "$request" $host "$http_x_forwarded_for" t=${request_time};'`,
		"|\n  [$msec] \"$request\" $host \"$http_x_forwarded_for\" t=$request_time;\n",
	} {
		check(t, "format: nginx\npattern: "+pattern+"\ndomain: d\ndescriptors: [[{key: host, header: ':authority'}, {key: for, header: X-Forwarded-For}, {key: path, header: ':path'}, {key: took, field: $request_time}]]\n", line, want)
	}
	check(t, "format: nginx\npattern: '$time_iso8601 $remote_addr'\ndomain: d\ndescriptors: [[{key: c, field: remote_addr}]]\n", "2026-03-01T21:00:00+09:00 a\n", "1 2026-03-01T12:00:00Z d (c=a) by c=a")
	check(t, "format: nginx\npattern: '[$date_local] $remote_addr'\ntime: {field: date_local, layout: clf}\ndomain: d\ndescriptors: [[{key: c, field: remote_addr}]]\n", "[01/Mar/2026:21:00:00 +0900] a\n", "1 2026-03-01T12:00:00Z d (c=a) by c=a")
}

// The error of a line that does not have the form gives the column where it differs.
func TestNginxBadLines(t *testing.T) {
	check(t, "format: nginx"+webMapping, `127.0.0.1 - - [22/Nov/2026:14:50:11 +0000] "GET / HTTP/1.1" 404 153 "-" "a" "x"
127.0.0.1 - - 22/Nov/2026
127.0.0.1 - - [22/Nov/2026:14:50:11 +0000] "GET "x" HTTP/1.1" 404 153 "-" "a"
127.0.0.1 - - [yesterday] "GET / HTTP/1.1" 404 153 "-" "a"
`,
		`bad line 1: column 76: unexpected text after the end of the log_format: " \"x\""`,
		`bad line 2: column 13: there is no " [" after remote_user, as the log_format says`,
		`bad line 3: column 49: after request stands "\"x\" HTTP/1.1\" 404 153 \"-\" \"a\"", not "\" ": a quote within a value makes a line of text ambiguous`,
		`bad line 4: "yesterday" is not a time like 01/Mar/2026:12:00:00 +0000 (clf)`)
}

// Apache's common and combined formats, in lines that Apache 2.4 of Debian wrote, and one that it did not.
func TestApache(t *testing.T) {
	check(t, "format: apache"+webMapping, `127.0.0.1 - - [22/Nov/2026:15:00:25 +0000] "GET /a?b=c HTTP/1.1" 403 301 "-" "curl/7.88.1"
127.0.0.1 - - [22/Nov/2026:15:00:25 +0000] "GET /x HTTP/1.1" 403 301 "-" "a\"b\\\xc3\xa9"
127.0.0.1 - - [22/Nov/2026:15:00:26 +0000] "\x16\x03\x01" 400 266 "-" "-"
127.0.0.1 - - [22/Nov/2026:15:00:26 +0000] "GET /x y" 400 266 "-" "-"
127.0.0.1 - - [22/Nov/2026:15:00:26 +0000] "GET /\"q\\ HTTP/1.1" 403 301
127.0.0.1 - - [22/Nov/2026:15:00:26 +0000] "OPTIONS * HTTP/1.0" 200 - "-" "-"
127.0.0.1 - - [22/Nov/2026:15:00:26 +0000] "OPTIONS * HTTP/1.0" 200 -
127.0.0.1 - - [22/Nov/2026:14:50:14 +0000] "GET / HTTP/1.1" 404 196 "-"
`,
		"1 2026-11-22T15:00:25Z edge (client=127.0.0.1) (method=GET, path=/a) (agent=curl/7.88.1) by client=127.0.0.1, method=GET, path=/a, agent=curl/7.88.1",
		`2 2026-11-22T15:00:25Z edge (client=127.0.0.1) (method=GET, path=/x) (agent=a"b\é) by client=127.0.0.1, method=GET, path=/x, agent=a"b\é`,
		"3 2026-11-22T15:00:26Z edge (client=127.0.0.1) by client=127.0.0.1",
		"4 2026-11-22T15:00:26Z edge (client=127.0.0.1) (method=GET, path=/x y) by client=127.0.0.1, method=GET, path=/x y",
		`5 2026-11-22T15:00:26Z edge (client=127.0.0.1) (method=GET, path=/"q\) by client=127.0.0.1, method=GET, path=/"q\`,
		"6 2026-11-22T15:00:26Z edge (client=127.0.0.1) (method=OPTIONS, path=*) by client=127.0.0.1, method=OPTIONS, path=*",
		"7 2026-11-22T15:00:26Z edge (client=127.0.0.1) (method=OPTIONS, path=*) by client=127.0.0.1, method=OPTIONS, path=*",
		`bad line 8: column 71: after http_referer stands "\"", not "\" \"": a quote within a value makes a line of text ambiguous`)
}

// The error of a wrong log_format gives the position, and a fix.
func TestWrongLogFormats(t *testing.T) {
	for _, c := range []struct{ mapping, want string }{
		{"format: nginx\npattern: '$remote_addr $'", "m.yaml:2:10: `pattern`: column 14: no name of a variable stands after $: write one such as $remote_addr"},
		{"format: nginx\npattern: '$remote_addr ${host'", "m.yaml:2:10: `pattern`: column 14: the variable ${host has no end: write ${host}"},
		{"format: nginx\npattern: '$host$remote_addr'", "m.yaml:2:10: `pattern`: column 6: nothing stands between $host and $remote_addr, so nothing separates their values: put a blank between them, here and in nginx.conf"},
		{"format: nginx\npattern: 'combined'", "m.yaml:2:10: `pattern`: there is no variable such as $remote_addr in it"},
		{"format: nginx\npattern: '$remote_addr $host'", "m.yaml:1:1: the log_format has no time: put $time_local, $time_iso8601 or $msec into it, or write the field that has the time as `time`"},
		{"format: nginx\npattern: |\n  log_format a '$msec';", "m.yaml:2:10: `pattern`: write only the text of the log_format: what stands between the quotes, joined to one line"},
		{"format: nginx\npattern: '{\"t\":\"$msec\"}'", "m.yaml:2:10: `pattern`: this log_format writes JSON: use `format: json`"},
		{"format: nginx\ntime: time_locale", "m.yaml:2:7: the log_format has no variable \"time_locale\": did you mean `time_local`?"},
		{"format: nginx\ncustomer: {header: x-user}", "m.yaml:2:20: the log_format has no $http_x_user: the log does not have this header"},
		{"format: apache\ncustomer: {header: ':authority'}", "m.yaml:2:20: the common or combined format has no $http_host or $host or $server_name: the log does not have this header"},
		{"format: apache\npattern: '%h'", "m.yaml:2:10: `pattern` is not for `apache`, which is the common and the combined format: write another LogFormat"},
	} {
		_, errs := accesslog.ParseMapping("m.yaml", []byte(c.mapping+"\n"+rest))
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), c.want) {
			t.Errorf("%s\ngives %q\nwant  %q", c.mapping, errs, c.want)
		}
	}
}

// If no line has the form, the mapping has advice.
func TestAdvice(t *testing.T) {
	for mapping, want := range map[string]string{
		"format: nginx\n":                                    "if nginx.conf has a log_format, write it as the `pattern` of the mapping, or as --pattern",
		"format: nginx\npattern: '$msec $host'\n":            "compare the `pattern` of the mapping, or --pattern, with the log_format in nginx.conf",
		"format: apache\n":                                   "lines must have Apache's common or combined format",
		"format: envoy\n":                                    "if its configuration has a text_format, write it as the `pattern` of the mapping, or as --pattern",
		"format: envoy\npattern: '%START_TIME% %REQ(:A)%'\n": "compare the `pattern` of the mapping, or --pattern, with the text_format",
	} {
		if got := parse(t, mapping+rest).Advice(); !strings.Contains(got, want) {
			t.Errorf("%s gives %q, want %q", mapping, got, want)
		}
	}
	if diff := cmp.Diff("", parse(t, "format: json\ntime: t\n"+rest).Advice()); diff != "" {
		t.Error(diff)
	}
}
