package accesslog

import (
	"bufio"
	"bytes"
	"fmt"
	"testing"
	"time"
)

// endless is a log that starts again at its end.
type endless struct {
	log []byte
	at  int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.at == len(e.log) {
		e.at = 0
	}
	n := copy(p, e.log[e.at:])
	e.at += n
	return n, nil
}

// moments are times as a log has them: a few in each second, in order.
func moments(layout string) []string {
	var all []string
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for range 1000 {
		at = at.Add(137 * time.Millisecond)
		all = append(all, at.Format(layout))
	}
	return all
}

// benchLog makes a log of a thousand lines.
func benchLog(layout string, line func(i int, at string) string) []byte {
	var b bytes.Buffer
	for i, at := range moments(layout) {
		b.WriteString(line(i, at) + "\n")
	}
	return b.Bytes()
}

const milliseconds = "2006-01-02T15:04:05.000Z07:00"

// jsonLog is a log of Envoy's with the fields of its documentation, 420 bytes a line.
func jsonLog() []byte {
	return benchLog(milliseconds, func(i int, at string) string {
		return fmt.Sprintf(`{"start_time":"%s","method":"GET","path":"/api/v1/items/%d?page=2","protocol":"HTTP/1.1","response_code":200,"response_flags":"-",`+
			`"bytes_received":0,"bytes_sent":15421,"duration":%d,"upstream_service_time":"11","x_forwarded_for":"203.0.113.%d","user_agent":"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",`+
			`"request_id":"8c0b9a5e-1d7c-4e0c-9d3e-%012d","authority":"shop.example.com","upstream_host":"10.1.2.3:8080","headers":{"x-user":"user-%d"}}`, at, i, i%90, i%250, i, i%97)
	})
}

func splitAll(b *testing.B, s splitter, fields [][]byte, size int) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(size / 1000))
	for b.Loop() {
		clear(fields)
		if _, err := s.split(fields); err != nil {
			b.Fatal(err)
		}
	}
}

func endlessLines(log []byte) *lines {
	return &lines{r: bufio.NewReaderSize(&endless{log: log}, maxLine)}
}

var jsonNames = []string{"start_time", "method", "path", "x_forwarded_for", "headers.x-user"}

func BenchmarkJSON(b *testing.B) {
	log := jsonLog()
	b.Run("split", func(b *testing.B) {
		splitAll(b, &jsonLines{lines: endlessLines(log), paths: newPaths(jsonNames), fields: make([]field, len(jsonNames))}, make([][]byte, len(jsonNames)), len(log))
	})
}

// BenchmarkRead measures the whole cost of a log line, from its bytes to a request.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name, mapping string
		log           []byte
	}{
		{"json", "format: json\ntime: start_time\ndomain: shop\ndescriptors:\n  - [{key: method, field: method}, {key: path, field: path}]\n  - [{key: ip, field: x_forwarded_for}]\n  - [{key: user, field: headers.x-user}]\n", jsonLog()},
	} {
		b.Run(c.name, func(b *testing.B) {
			m, errs := ParseMapping("m.yaml", []byte(c.mapping))
			if len(errs) > 0 {
				b.Fatal(errs)
			}
			r, err := m.NewReader(&endless{log: c.log})
			if err != nil {
				b.Fatal(err)
			}
			fields := make([]string, m.Fields())
			var arena Arena
			var req Request
			b.ReportAllocs()
			b.SetBytes(int64(len(c.log) / 1000))
			for b.Loop() {
				rec, err := r.Next()
				if err != nil {
					b.Fatal(err)
				}
				for i, f := range rec.Fields {
					fields[i] = string(f)
				}
				if !m.Build(fields, rec.Hits, &arena, &req) {
					b.Fatal("no request")
				}
				arena.Reset()
			}
		})
	}
}
