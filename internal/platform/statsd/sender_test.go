package statsd_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbers are statistics that a test changes.
type numbers struct {
	mu               sync.Mutex
	counters, gauges map[string]uint64
}

func newNumbers() *numbers {
	return &numbers{counters: make(map[string]uint64), gauges: make(map[string]uint64)}
}

func (n *numbers) count(name string, by uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counters[name] += by
}

func (n *numbers) source() statsd.Source {
	visitAll := func(all map[string]uint64) func(func(path, stat string, n uint64)) {
		return func(visit func(path, stat string, n uint64)) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for name, v := range all {
				dot := strings.LastIndex(name, ".")
				visit(name[:dot], name[dot+1:], v)
			}
		}
	}
	return statsd.Source{Counters: visitAll(n.counters), Gauges: visitAll(n.gauges)}
}

// listener is a StatsD daemon that keeps the received lines.
type listener struct {
	t       *testing.T
	address string
	lines   chan string
	packets chan int // sizes, of UDP
	close   func()
}

func listenUDP(t *testing.T) *listener {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, address: conn.LocalAddr().String(), lines: make(chan string, 1<<17), packets: make(chan int, 1<<17)}
	l.close = sync.OnceFunc(func() { _ = conn.Close() })
	t.Cleanup(l.close)
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			l.packets <- n
			for line := range strings.Lines(string(b[:n])) {
				l.lines <- strings.TrimSuffix(line, "\n")
			}
		}
	}()
	return l
}

func listenTCP(t *testing.T, address string) *listener {
	t.Helper()
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, address: tcp.Addr().String(), lines: make(chan string, 1<<17)}
	var mu sync.Mutex
	var conns []net.Conn
	l.close = sync.OnceFunc(func() {
		_ = tcp.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Cleanup(l.close)
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go func() {
				for s := bufio.NewScanner(c); s.Scan(); {
					l.lines <- s.Text()
				}
			}()
		}
	}()
	return l
}

// next waits for n lines, and returns them sorted.
func (l *listener) next(n int) []string {
	l.t.Helper()
	var got []string
	deadline := time.After(20 * time.Second)
	for len(got) < n {
		select {
		case line := <-l.lines:
			got = append(got, line)
		case <-deadline:
			l.t.Fatalf("%d of %d lines came: %q", len(got), n, got)
		}
	}
	slices.Sort(got)
	return got
}

// none checks that no more lines have arrived than expected.
func (l *listener) none() {
	l.t.Helper()
	select {
	case line := <-l.lines:
		l.t.Errorf("%q came too", line)
	default:
	}
}

// send runs a sender until the test ends, or until stop is called, after which the last flush has been sent.
func send(t *testing.T, opts statsd.Options) (stop func()) {
	t.Helper()
	if opts.Interval == 0 {
		opts.Interval = time.Hour // the last flush is the only one
	}
	opts.Log = slog.New(slog.DiscardHandler)
	s, err := statsd.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestPlainStatsD(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Setenv("DD_ENV", "staging") // the client library would add it as a tag, which plain StatsD does not support
			l := listenUDP(t)
			if network == "tcp" {
				l = listenTCP(t, "127.0.0.1:0")
			}
			n := newNumbers()
			n.count("ratelimit.service.rate_limit.d.k.total_hits", 7)
			n.count("ratelimit.service.rate_limit.d.k.over_limit", 0)
			n.gauges["ratelimit.redis_pool.cx_active"] = 3
			timings := new(statsd.Timings)
			timings.Observe(0.00125)
			source := n.source()
			once := source.Counters
			source.Counters = func(visit func(path, stat string, n uint64)) {
				once(visit)
				visit("ratelimit.service.rate_limit.d.k", "total_hits", 3) // the same name again: the values are added up
			}
			stop := send(t, statsd.Options{Source: source, Timings: timings, Network: network, Address: l.address})
			stop()
			want := []string{
				"ratelimit.redis_pool.cx_active:3|g",
				"ratelimit.service.rate_limit.d.k.total_hits:10|c",
				"ratelimit_server.ShouldRateLimit.response_time:1.250000|ms",
			}
			if diff := cmp.Diff(want, l.next(len(want))); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			l.none()
		})
	}
}

// For counters, the growth is sent, and nothing without growth; gauges are sent with every flush.
func TestFlushesSendWhatChanged(t *testing.T) {
	l := listenUDP(t)
	n := newNumbers()
	n.count("a.total_hits", 2)
	n.gauges["p.cx_active"] = 1
	stop := send(t, statsd.Options{Source: n.source(), Address: l.address, Interval: 20 * time.Millisecond})
	var hits, gauges int
	read := func(until func() bool) {
		t.Helper()
		for !until() {
			line := l.next(1)[0]
			if v, ok := strings.CutPrefix(line, "a.total_hits:"); ok {
				by, err := strconv.Atoi(strings.TrimSuffix(v, "|c"))
				if err != nil || by == 0 {
					t.Fatalf("%q: want a number above zero", line)
				}
				if hits += by; hits > 42 {
					t.Fatalf("%d hits came, of 42", hits)
				}
			} else if line == "p.cx_active:1|g" {
				gauges++
			} else {
				t.Fatalf("%q came", line)
			}
		}
	}
	read(func() bool { return hits == 2 && gauges >= 3 })
	n.count("a.total_hits", 40)
	read(func() bool { return hits == 42 })
	stop()
}

func TestTagsOfPlainStatsD(t *testing.T) {
	l := listenUDP(t)
	n := newNumbers()
	n.count("a.total_hits", 1)
	tags, err := statsd.ParseTags("version:1.2:3, env:prod")
	if err != nil {
		t.Fatal(err)
	}
	send(t, statsd.Options{Source: n.source(), Address: l.address, Tags: tags})()
	if got := l.next(1)[0]; got != "a.total_hits.__env=prod.__version=1_2_3:1|c" {
		t.Errorf("got %q", got)
	}
}

func TestDogStatsD(t *testing.T) {
	l := listenUDP(t)
	n := newNumbers()
	n.count("ratelimit.service.rate_limit.shop.user_bob.total_hits", 4)
	n.count("ratelimit.service.rate_limit.shop.path_/a,b.total_hits", 1)
	n.count("ratelimit.service.config_load_success", 1)
	n.gauges["ratelimit.redis_pool.cx_active"] = 2
	timings := new(statsd.Timings)
	timings.Observe(0.5)
	tags, err := statsd.ParseTags("env:prod,version:1.2")
	if err != nil {
		t.Fatal(err)
	}
	mogrified, err := statsd.ParseTags("domain:$1,descriptor:$2")
	if err != nil {
		t.Fatal(err)
	}
	send(t, statsd.Options{
		Source: n.source(), Timings: timings, Address: l.address, Datadog: true, Tags: tags,
		Mogrifiers: []statsd.Mogrifier{
			{Pattern: regexp.MustCompile(`^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$`), Name: "limits.$3", Tags: mogrified},
			{Pattern: regexp.MustCompile(`^ratelimit\.(.*)$`), Name: "other.$1.$7"},
			{Pattern: regexp.MustCompile(`.`), Name: "never", Tags: mogrified},
		},
	})()
	const common = "env:prod,version:1_2"
	var got []string
	for _, line := range l.next(5) {
		fields := strings.Split(line, "|")
		got = append(got, strings.Join(fields[:min(3, len(fields))], "|")) // beyond that: where the process runs
	}
	want := []string{
		"limits.total_hits:1|c|#" + common + ",descriptor:path_/a_b,domain:shop",
		"limits.total_hits:4|c|#" + common + ",descriptor:user_bob,domain:shop",
		"never:500.000000|ms|#" + common + ",descriptor:$2,domain:$1",
		"other.redis_pool.cx_active.$7:2|g|#" + common,
		"other.service.config_load_success.$7:1|c|#" + common,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// For many response times, a sample with its rate is sent. Packets are not fragmented.
func TestResponseTimesAreSampled(t *testing.T) {
	for _, datadog := range []bool{false, true} {
		t.Run(fmt.Sprintf("datadog %t", datadog), func(t *testing.T) {
			l := listenUDP(t)
			timings := new(statsd.Timings)
			const count = 50_000
			var callers sync.WaitGroup
			for range 4 {
				callers.Go(func() {
					for i := range count / 4 {
						timings.Observe(float64(i%100+1) / 1000)
					}
				})
			}
			callers.Wait()
			send(t, statsd.Options{
				Source: newNumbers().source(), Timings: timings, Address: l.address, Datadog: datadog,
				// short: many lines fit into a packet
				Mogrifiers: []statsd.Mogrifier{{Pattern: regexp.MustCompile(`.`), Name: "t"}},
			})()
			lines := l.next(1000)
			l.none()
			var stands, sum float64
			for _, line := range lines {
				fields := strings.Split(line, "|")
				if len(fields) < 3 || fields[1] != "ms" || !strings.HasPrefix(fields[2], "@") {
					t.Fatalf("%q is no sampled time", line)
				}
				rate, err := strconv.ParseFloat(fields[2][1:], 64)
				if err != nil {
					t.Fatal(err)
				}
				ms, err := strconv.ParseFloat(fields[0][strings.Index(fields[0], ":")+1:], 64)
				if err != nil {
					t.Fatal(err)
				}
				stands += 1 / rate
				sum += ms
			}
			if stands < count*0.99 || stands > count*1.01 {
				t.Errorf("the sample stands for %.0f times, want %d", stands, count)
			}
			if mean := sum / 1000; mean < 46 || mean > 55 { // five standard errors
				t.Errorf("the mean is %.1f ms, want about 50.5", mean)
			}
			for len(l.packets) > 0 {
				if size := <-l.packets; size > 1432 {
					t.Errorf("a packet has %d bytes", size)
				}
			}
		})
	}
}

// A listener that was unreachable gets the counts since, even if it went down between two flushes.
func TestListenerGoesAndComes(t *testing.T) {
	l := listenTCP(t, "127.0.0.1:0")
	n := newNumbers()
	registry := prometheus.NewPedanticRegistry()
	n.count("a.total_hits", 1)
	stop := send(t, statsd.Options{Source: n.source(), Network: "tcp", Address: l.address, Interval: 20 * time.Millisecond, Metrics: registry})
	if got := l.next(1)[0]; got != "a.total_hits:1|c" {
		t.Fatalf("got %q", got)
	}
	l.close()
	eventually(t, "an error", func() bool { return errorsCounted(t, registry) > 0 })
	n.count("a.total_hits", 10)
	back := listenTCP(t, l.address)
	if got := back.next(1)[0]; got != "a.total_hits:10|c" {
		t.Errorf("got %q after it came back", got)
	}
	stop()
}

func errorsCounted(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ratelimitd_statsd_errors_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("errors are no metric")
	return 0
}

func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !reached(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come about", what)
		}
	}
}

// Nothing is lost on this side, with any number of statistics.
func TestManyStatistics(t *testing.T) {
	l := listenTCP(t, "127.0.0.1:0")
	n := newNumbers()
	want := make(map[string]bool)
	for i := range 30_000 {
		name := fmt.Sprintf("ratelimit.service.rate_limit.domain.%s_%d.total_hits", strings.Repeat("x", i%300), i)
		n.count(name, 3)
		want[name+":3|c"] = true
	}
	registry := prometheus.NewPedanticRegistry()
	send(t, statsd.Options{Source: n.source(), Network: "tcp", Address: l.address, Metrics: registry})()
	for _, line := range l.next(len(want)) {
		if !want[line] {
			t.Fatalf("%q came, or came twice", line)
		}
		delete(want, line)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(
		"# HELP ratelimitd_statsd_errors_total Failed attempts to send statistics to StatsD.\n"+
			"# TYPE ratelimitd_statsd_errors_total counter\nratelimitd_statsd_errors_total 0\n")); err != nil {
		t.Error(err)
	}
}

func TestParseTags(t *testing.T) {
	for text, want := range map[string][]statsd.Tag{
		"":                 nil,
		"a:1":              {{Key: "a", Value: "1"}},
		" b:2 , a:x:y,b:3": {{Key: "a", Value: "x:y"}, {Key: "b", Value: "3"}},
	} {
		got, err := statsd.ParseTags(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"a", "a:", ":1", "a:1,b"} {
		if _, err := statsd.ParseTags(bad); err == nil || !strings.Contains(err.Error(), "key:value") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestWriteText(t *testing.T) {
	n := newNumbers()
	n.count("b.total_hits", 2)
	n.count("a.total_hits", 1)
	n.gauges["c.cx_active"] = 9
	source := n.source()
	once := source.Counters
	source.Counters = func(visit func(path, stat string, n uint64)) {
		once(visit)
		visit("a", "total_hits", 5) // the same name again: the values are added up
	}
	var b strings.Builder
	if err := source.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if want := "a.total_hits: 6\nb.total_hits: 2\nc.cx_active: 9\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func BenchmarkTimings(b *testing.B) {
	timings := new(statsd.Timings)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			timings.Observe(0.001)
		}
	})
}

// A sender keeps only a few payloads, and does not add one with each flush until there are thousands.
func TestSenderIsSmall(t *testing.T) {
	opts := statsd.Options{Source: newNumbers().source(), Network: "tcp", Address: "127.0.0.1:1", Log: slog.New(slog.DiscardHandler)}
	made := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			s, err := statsd.New(opts)
			if err != nil {
				b.Fatal(err)
			}
			ended, end := context.WithCancel(context.Background())
			end()
			_ = s.Run(ended)
		}
	}).AllocedBytesPerOp()
	if t.Logf("a sender takes %d bytes", made); made > 1<<20 {
		t.Errorf("a sender takes %d bytes", made)
	}
}
