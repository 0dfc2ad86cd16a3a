package simulate_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/config"
)

// start is the time at which generated logs start.
var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// generated is a log that is made while it is read: a request every so often, each from one of many customers, of whom
// a few ask much and most ask little.
type generated struct {
	line      func(b []byte, at time.Time, customer, path int) []byte
	random    *rand.Rand
	customers int
	left      int
	every     time.Duration
	at        time.Time
	buf       []byte
	rest      []byte
	disorder  time.Duration // longest time by which a line may be older than the previous one
}

func generate(lines, customers int, line func([]byte, time.Time, int, int) []byte) *generated {
	return &generated{line: line, random: rand.New(rand.NewPCG(1, 2)), customers: customers, left: lines, every: time.Millisecond, at: start, disorder: 300 * time.Millisecond}
}

func (g *generated) Read(p []byte) (int, error) {
	for len(g.rest) == 0 {
		if g.left == 0 {
			return 0, io.EOF
		}
		g.buf = g.buf[:0]
		for ; g.left > 0 && len(g.buf) < 64<<10; g.left-- {
			f := g.random.Float64()
			customer := int(f * f * f * float64(g.customers))
			at := g.at.Add(-time.Duration(g.random.Int64N(int64(g.disorder) + 1)))
			g.buf = g.line(g.buf, at, customer, g.random.IntN(20))
			g.at = g.at.Add(g.every)
		}
		g.rest = g.buf
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

func appendAddress(b []byte, customer int) []byte {
	b = append(b, "10."...)
	b = strconv.AppendInt(b, int64(customer>>16), 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(customer>>8&255), 10)
	b = append(b, '.')
	return strconv.AppendInt(b, int64(customer&255), 10)
}

const stamp = "2006-01-02T15:04:05.000Z"

func envoyLine(b []byte, at time.Time, customer, path int) []byte {
	b = append(b, '[')
	b = at.AppendFormat(b, stamp)
	b = append(b, `] "GET /api/v1/things/`...)
	b = strconv.AppendInt(b, int64(path), 10)
	b = append(b, ` HTTP/1.1" 200 - 0 1234 12 11 "`...)
	b = appendAddress(b, customer)
	b = append(b, `" "Mozilla/5.0 (X11; Linux x86_64)" "5f1b2c3d-aaaa-bbbb-cccc-0123456789ab" "api.example.com" "10.1.2.3:8080"`...)
	return append(b, '\n')
}

func jsonLine(b []byte, at time.Time, customer, path int) []byte {
	b = append(b, `{"start_time":"`...)
	b = at.AppendFormat(b, stamp)
	b = append(b, `","method":"GET","path":"/api/v1/things/`...)
	b = strconv.AppendInt(b, int64(path), 10)
	b = append(b, `","protocol":"HTTP/1.1","response_code":200,"response_flags":"-","bytes_received":0,"bytes_sent":1234,"duration":12,"upstream_service_time":"11","x_forwarded_for":"`...)
	b = appendAddress(b, customer)
	b = append(b, `","user_agent":"Mozilla/5.0 (X11; Linux x86_64)","request_id":"5f1b2c3d-aaaa-bbbb-cccc-0123456789ab","authority":"api.example.com","upstream_host":"10.1.2.3:8080"}`...)
	return append(b, '\n')
}

var formats = []struct {
	name, mapping, header string
	line                  func([]byte, time.Time, int, int) []byte
}{
	{"envoy", "format: envoy\ndomain: edge\ndescriptors:\n- [{key: remote_address, header: x-forwarded-for}]\n", "", envoyLine},
	{"json", "format: json\ntime: start_time\ndomain: edge\ndescriptors:\n- [{key: remote_address, field: x_forwarded_for}]\n", "", jsonLine},
}

func mapping(t testing.TB, text string) *accesslog.Mapping {
	t.Helper()
	m, errs := accesslog.ParseMapping("mapping.yaml", []byte(text))
	for _, e := range errs {
		t.Error(e)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	return m
}

func rules(t testing.TB, text string) simulate.Rules {
	t.Helper()
	tree, errs := config.Compile([]config.File{{Name: "rules.yaml", Data: []byte(text)}}, config.CompileOptions{Merge: true})
	for _, e := range errs {
		t.Error(e)
	}
	if len(errs) > 0 {
		t.FailNow()
	}
	return simulate.Rules{Directory: "rules", Tree: tree}
}

func perCustomer(requests int) string {
	return fmt.Sprintf("domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: %d}}\n", requests)
}

func log(name string, r io.Reader) simulate.Log {
	return simulate.Log{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(r), nil }}
}

// cpuSeconds is the processor time of this process: on a busy machine, it is a better measure than a clock.
func cpuSeconds(t testing.TB) float64 {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkRun reports how many requests per second of a log in memory are simulated. GOMAXPROCS=1 measures one core.
func BenchmarkRun(b *testing.B) {
	const lines = 1_000_000
	for _, f := range formats {
		var text bytes.Buffer
		text.WriteString(f.header)
		if _, err := text.ReadFrom(generate(lines, 20_000, f.line)); err != nil {
			b.Fatal(err)
		}
		now, old := rules(b, perCustomer(30)), rules(b, perCustomer(40))
		m := mapping(b, f.mapping)
		for _, compare := range []bool{false, true} {
			name := f.name
			if compare {
				name += ", two directories"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				before := cpuSeconds(b)
				for b.Loop() {
					o := simulate.Options{Rules: now, Mapping: m, Logs: []simulate.Log{log("log", bytes.NewReader(text.Bytes()))}, Window: 5 * time.Second}
					if compare {
						o.Against = &old
					}
					r, err := simulate.Run(b.Context(), o)
					if err != nil {
						b.Fatal(err)
					}
					if r.Requests != lines || r.New.Denied == 0 || r.Order.Late > 0 || r.Order.Reordered == 0 {
						b.Fatalf("%+v", r)
					}
				}
				b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
				b.ReportMetric(float64(lines)*float64(b.N)/(cpuSeconds(b)-before), "requests/cpu-s")
			})
		}
	}
}
