package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// redisFor starts a Redis for a test.
func redisFor(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil || testing.Short() {
		if os.Getenv("CI") != "" && err != nil {
			t.Fatalf("find redis-server: %v. workshop/scripts/install-redis gets it", err)
		}
		t.Skip("NOT RUN without redis-server, or with -short: workshop/scripts/install-redis gets it")
	}
	address, end, err := startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return address
}

// Each library is used in a way that limits: of 20 requests with one key, ten pass, and ten of another key.
func TestLibrariesLimit(t *testing.T) {
	memory := append(slices.Clone(inMemory), shaped...)
	t.Run("memory", func(t *testing.T) { limitsEachKey(t, memory, setup{limit: limit{10, "hour"}}) })
	t.Run("Redis", func(t *testing.T) {
		redis := append(slices.Clone(onRedis), shaped...)
		limitsEachKey(t, redis, setup{limit: limit{10, "hour"}, redis: redisFor(t), pool: 2})
	})
}

func limitsEachKey(t *testing.T, libraries []library, s setup) {
	t.Helper()
	for i, l := range libraries {
		if l.paces {
			continue
		}
		s.prefix = prefix(i)
		open, err := l.open(s)
		if err != nil {
			t.Fatalf("open %s: %v", l.name, err)
		}
		for key := range 2 {
			admitted := withinOneHour(func(run int) (admitted int) {
				for range 20 {
					ok, err := open.decide(t.Context(), fmt.Sprintf("%s-%d-%d", l.name, key, run))
					if err != nil {
						t.Fatalf("%s: %v", l.name, err)
					}
					if ok {
						admitted++
					}
				}
				return admitted
			})
			if admitted != 10 {
				t.Errorf("%s admitted %d of 20 requests, the limit is 10", l.name, admitted)
			}
		}
		if err := open.close(); err != nil {
			t.Errorf("close %s: %v", l.name, err)
		}
	}
}

// withinOneHour repeats what an hour of the clock has interrupted.
func withinOneHour(count func(run int) int) int {
	for run := 0; ; run++ {
		start := time.Now()
		n := count(run)
		if time.Now().Truncate(time.Hour).Equal(start.Truncate(time.Hour)) {
			return n
		}
	}
}

// A short run prints a row for each library under each load.
func TestReport(t *testing.T) {
	var out strings.Builder
	b := bench{keys: "1,50", rounds: 2, duration: time.Millisecond, repeats: 1, pool: 2, parts: "memory"}
	if err := b.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	tables := strings.Count(out.String(), "| library ")
	if want := 2 * len(slices.Compact([]int{1, runtime.GOMAXPROCS(0)})); tables != want {
		t.Errorf("%d tables, want %d:\n%s", tables, want, out.String())
	}
	for _, l := range inMemory {
		if n := strings.Count(out.String(), "| "+l.name+" "); n != tables {
			t.Errorf("%d rows of %s, want %d:\n%s", n, l.name, tables, out.String())
		}
	}
}

func TestReportOfRedis(t *testing.T) {
	var out strings.Builder
	b := bench{address: redisFor(t), keys: "1", rounds: 1, duration: 20 * time.Millisecond, repeats: 1, pool: 4, parts: "redis,exact"}
	if err := b.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, l := range onRedis {
		if !strings.Contains(out.String(), "| "+l.name+" ") {
			t.Errorf("no row of %s:\n%s", l.name, out.String())
		}
	}
}

func TestMistakes(t *testing.T) {
	for want, b := range map[string]bench{
		"-keys has \"x\"":      {keys: "1,x", rounds: 1, duration: 1, repeats: 1, pool: 1},
		"-keys has \"0\"":      {keys: "0", rounds: 1, duration: 1, repeats: 1, pool: 1},
		"must be positive":     {keys: "1", duration: 1, repeats: 1, pool: 1},
		"-parts has \"cloud\"": {keys: "1", rounds: 1, duration: 1, repeats: 1, pool: 1, parts: "cloud"},
	} {
		if err := b.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// What may lie outside of a span does not count.
func TestMost(t *testing.T) {
	at := func(from, to time.Duration) admission {
		return admission{from * time.Millisecond, to * time.Millisecond}
	}
	for _, c := range []struct {
		all  []admission
		want int
	}{
		{nil, 0},
		{[]admission{at(0, 1)}, 1},
		{[]admission{at(0, 1), at(900, 901), at(1050, 1051)}, 2},
		{[]admission{at(900, 901), at(0, 1), at(950, 951), at(1100, 1101)}, 3},
		{[]admission{at(0, 1), at(999, 1000)}, 1},
		{[]admission{at(0, 1), at(998, 999)}, 2},
		{[]admission{at(5, 6), at(0, 9), at(1000, 1004)}, 2}, // the second may have been before the first
	} {
		if got := most(c.all, time.Second); got != c.want {
			t.Errorf("%v: %d, want %d", c.all, got, c.want)
		}
	}
}

func TestPromises(t *testing.T) {
	second := time.Date(2027, 3, 4, 5, 6, 7, 0, time.UTC)
	ms := func(n time.Duration) time.Time { return second.Add(n * time.Millisecond) }
	for _, c := range []struct {
		name     string
		of       promise
		from, to time.Time
		want     int
	}{
		{"one window of the clock", clockWindows, ms(0), ms(999), 100},
		{"two windows of the clock", clockWindows, ms(900), ms(1100), 200},
		{"one window", firstHitWindows, ms(900), ms(1800), 100},
		{"two windows", firstHitWindows, ms(0), ms(1500), 200},
		{"half a second of a bucket", bucket, ms(0), ms(500), 150},
		{"half a second of a pacer", pacer, ms(0), ms(500), 61},
	} {
		if got := c.of(100, c.from, c.to); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{3}, 0.25, 3},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{5, 1, 3, 2, 4}, 0.25, 2},
		{[]float64{5, 1, 3, 2, 4}, 1, 5},
	} {
		if got := quantile(c.values, c.p); got != c.want {
			t.Errorf("quantile %g of %v: %g, want %g", c.p, c.values, got, c.want)
		}
	}
}

// The ratio is to the fastest of the others, round by round.
func TestRatio(t *testing.T) {
	took := func(name string, ns ...time.Duration) *measured {
		m := &measured{name: name}
		for _, n := range ns {
			m.rounds = append(m.rounds, round{decisions: 1, took: n})
		}
		return m
	}
	ns := func(r round) float64 { return r.ns(1) }
	us, other, slow := took("ratelimitd, x", 50, 100, 20), took("other", 100, 200, 400), took("slow", 400, 400, 400)
	if got := least([]*measured{us, slow, other}, ns); got != other {
		t.Errorf("the fastest other is %s", got.name)
	}
	if got := us.ratio(other, ns); got != 0.5 {
		t.Errorf("ratio %g, want 0.5", got)
	}
}

func TestNumber(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 999.7: "1,000", 1234.5: "1,234", 1234567: "1,234,567"} {
		if got := number(f); got != want {
			t.Errorf("%g: %s, want %s", f, got, want)
		}
	}
}

func TestCPUOf(t *testing.T) {
	got, err := cpuOf("# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n")
	if err != nil || got != 3750*time.Millisecond {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := cpuOf("# CPU\r\n"); err == nil {
		t.Error("no error for an answer without CPU times")
	}
}
