package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// FuzzText looks whether lines made of values without quotes and of the pattern's text are taken apart again.
func FuzzText(f *testing.F) {
	f.Add("2026", "GET", "/x", "agent", `[2026] "GET /x" "agent"`)
	p, err := parsePattern(`[%A%] "%B% %C%" "%D%"`)
	if err != nil {
		f.Fatal(err)
	}
	for i := range p.ops {
		p.ops[i].field = i
	}
	f.Fuzz(func(t *testing.T, a, b, c, d, any string) {
		got := make([][]byte, 4)
		_ = p.split([]byte(any), got) // no text ends the process
		if strings.Contains(a+b, "]") || strings.ContainsAny(b, " ") || strings.Contains(a+b+c+d, `"`) {
			return
		}
		if msg := p.split(fmt.Appendf(nil, `[%s] "%s %s" "%s"`, a, b, c, d), got); msg != "" {
			t.Fatalf("%q %q %q %q: %s", a, b, c, d, msg)
		}
		for i, want := range []string{a, b, c, d} {
			if string(got[i]) != want {
				t.Fatalf("%q %q %q %q: value %d is %q", a, b, c, d, i, got[i])
			}
		}
	})
}

// FuzzTime compares times with package time's result, and times in other accepted forms with their standard form.
func FuzzTime(f *testing.F) {
	for _, s := range []string{
		"2026-03-01T12:00:00Z", "2026-03-01T12:00:00.123456+09:00", "2024-02-29T23:59:59-23:59", "2100-02-29T00:00:00Z", "2026-3-01T12:00:00Z",
		"2026-03-01T12:00:00,5Z", "2026-03-01T1:00:00Z", "2026-03-01T12:00:00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 12 && s[12] == ':' {
			return // package time takes an hour of one digit, which RFC 3339 does not
		}
		var l layout
		got, err := l.parse([]byte(s))
		want, wantErr := time.Parse(time.RFC3339Nano, s)
		if wantErr != nil || len(s) > 10 && s[10] != 'T' || want.UnixMicro() < earliest || want.UnixMicro() >= latest {
			return // more is taken here: blanks for the T, small letters, a zone without colon
		}
		if err != nil || got != want.Truncate(time.Microsecond).UnixMicro() {
			t.Fatalf("%q is %d %v, want %d", s, got, err, want.UnixMicro())
		}
		sign := len(s) - 6
		for _, other := range []string{strings.Replace(s, "T", " ", 1), strings.ToLower(s), s[:sign] + strings.ReplaceAll(s[sign:], ":", "")} {
			if strings.HasSuffix(s, "Z") && strings.Count(other, ":") < 2 {
				continue // it has no zone with a colon
			}
			if again, err := l.parse([]byte(other)); err != nil || again != got {
				t.Fatalf("%q is %d %v, and %q %d", other, again, err, s, got)
			}
		}
	})
}

// FuzzMapping reads mappings, and reads a log with each mapping that is valid.
func FuzzMapping(f *testing.F) {
	for _, s := range []string{
		"format: envoy\ndomain: d\ndescriptors: [[{key: k, header: ':path', part: path, regex: 'a(b)?'}]]\n",
		"format: text\npattern: '%A% %B(x%)%:3'\ntime: {field: A, layout: unix}\ndomain: {field: B}\ndescriptors: [{entries: [{key: k, field: A}], when: [{field: A, is: x}], hits: A}]\n",
		"format: json\ntime: {field: a, zone: UTC}\ndomain: d\ndescriptors: &x [[{key: k, field: a.b}], *x]\n",
	} {
		f.Add([]byte(s), []byte("2026-03-01T12:00:00Z x\n{\"a\":\"2026-03-01T12:00:00\"}\n"))
	}
	f.Fuzz(func(t *testing.T, text, log []byte) {
		m, errs := ParseMapping("m.yaml", text)
		if (m == nil) != (len(errs) > 0) {
			t.Fatalf("a mapping %v with errors %q", m, errs)
		}
		for _, e := range errs {
			if e.Line < 1 || e.Col < 1 {
				t.Fatalf("an error without a place: %s", e)
			}
		}
		if m == nil {
			return
		}
		r, err := m.NewReader(bytes.NewReader(log))
		if err != nil {
			return
		}
		fields := make([]string, m.Fields())
		var arena Arena
		var req Request
		for {
			rec, err := r.Next()
			var bad *LineError
			if errors.As(err, &bad) {
				continue
			}
			if err != nil {
				return
			}
			for i, f := range rec.Fields {
				fields[i] = string(f)
			}
			if m.Build(fields, rec.Hits, &arena, &req) && (req.Domain == "" || len(req.Descriptors) == 0 || len(req.Customer) == 0) {
				t.Fatalf("half a request: %+v", req)
			}
		}
	})
}
