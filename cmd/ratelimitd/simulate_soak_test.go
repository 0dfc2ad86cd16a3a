package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// madeUpLog generates requests on demand. The i-th request is always the same, a millisecond after the one before it. A
// few customers send most of them.
type madeUpLog struct {
	requests, customers int
	start               time.Time
}

type madeUp struct {
	at             time.Time
	customer, path int
	plan           string
}

var plans = []string{"fixed", "sliding", "log", "token", "leaky"}

func (r madeUpLog) at(i int) madeUp {
	x := uint64(i) * 0x9e3779b97f4a7c15 // splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	f := float64(x>>11) / (1 << 53)
	customer := int(f * f * f * float64(r.customers))
	return madeUp{at: r.start.Add(time.Duration(i) * time.Millisecond), customer: customer, path: int(x % 7), plan: plans[customer%len(plans)]}
}

// displaced returns the number of the request at index i of the log. Each request is within a quarter of a second of
// its place in time.
func displaced(i int) int { return i ^ 0xa5 }

// write writes the log to a writer.
func (r madeUpLog) write(to io.Writer) error {
	w := bufio.NewWriterSize(to, 1<<20)
	var b []byte
	for i := range r.requests {
		m := r.at(displaced(i))
		b = append(b[:0], `{"start_time":"`...)
		b = m.at.AppendFormat(b, "2006-01-02T15:04:05.000Z")
		b = append(b, `","method":"GET","path":"/`...)
		b = strconv.AppendInt(b, int64(m.path), 10)
		b = append(b, `","response_code":200,"duration":12,"user":"customer`...)
		b = strconv.AppendInt(b, int64(m.customer), 10)
		b = append(b, `","plan":"`...)
		b = append(b, m.plan...)
		b = append(b, "\",\"user_agent\":\"Mozilla/5.0\"}\n"...)
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return w.Flush()
}

// request returns the request that Envoy would send.
func (m *madeUp) request() *ratelimitv3.RateLimitRequest {
	entry := func(key, value string) *commonv3.RateLimitDescriptor_Entry {
		return &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value}
	}
	customer := "customer" + strconv.Itoa(m.customer)
	return &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("plan", m.plan), entry("user", customer)}},
		{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("path", "/"+strconv.Itoa(m.path)), entry("user", customer)}},
		{Entries: []*commonv3.RateLimitDescriptor_Entry{entry("path", "/"+strconv.Itoa(m.path))}},
	}}
}

const trafficMapping = `
format: json
time: start_time
domain: edge
descriptors:
  - [{key: plan, field: plan}, {key: user, field: user}]
  - [{key: path, field: path}, {key: user, field: user}]
  - [{key: path, field: path}]
customer: {field: user}
`

// trafficRules has one plan per algorithm, and a limit that all customers share if shared is set.
func trafficRules(shared bool) string {
	rules := `domain: edge
descriptors:
  - {key: plan, value: fixed, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 40}}]}
  - {key: plan, value: sliding, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 40, algorithm: sliding_window}}]}
  - {key: plan, value: log, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 40, algorithm: sliding_log}}]}
  - {key: plan, value: token, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 40, burst: 10, algorithm: token_bucket}}]}
  - {key: plan, value: leaky, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 40, burst: 10, algorithm: leaky_bucket}}]}
  - key: path
    value: /3
    descriptors: [{key: user, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 4}}]
`
	if shared {
		rules += "    rate_limit: {unit: second, requests_per_unit: 100}\n"
	}
	return rules
}

// timed decides at the time that the customer gives in a last descriptor.
type timed struct{ *limiter.Limiter }

func (d timed) Start(ctx context.Context, _ time.Time, b *limiter.Batch, req *limiter.Request, out *limiter.Decision, done func(error)) (decided bool, err error) {
	last := len(req.Descriptors) - 1
	at, err := strconv.ParseInt(req.Descriptors[last].Entries[0].Value, 10, 64)
	req.Descriptors = req.Descriptors[:last]
	if err != nil {
		return true, err
	}
	return d.Limiter.Start(ctx, time.UnixMicro(at), b, req, out, done)
}

// served sends every request to a real server over gRPC, with the time of the request, and returns the answers.
// Requests of one customer are sent in order. With several lanes, different customers are sent concurrently.
func (r madeUpLog) served(t *testing.T, rules simulate.Rules, lanes int) []ratelimitv3.RateLimitResponse_Code {
	t.Helper()
	decider := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	decider.Swap(rules.Tree, limiter.Settings{})
	addr := serveDecider(t, timed{decider})
	codes := make([]ratelimitv3.RateLimitResponse_Code, r.requests)
	var g errgroup.Group
	for lane := range lanes {
		client := ratelimitv3.NewRateLimitServiceClient(dial(t, addr))
		g.Go(func() error {
			for i := range r.requests {
				m := r.at(i)
				if m.customer%lanes != lane {
					continue
				}
				request := m.request()
				request.Descriptors = append(request.Descriptors, ask("", "at", strconv.FormatInt(m.at.UnixMicro(), 10)).GetDescriptors()...)
				answer, err := client.ShouldRateLimit(t.Context(), request)
				if err != nil {
					return err
				}
				codes[i] = answer.OverallCode
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return codes
}

// compare checks that a simulation of a log gives the same verdicts as a server.
func (r madeUpLog) compare(t *testing.T, lanes int) {
	t.Helper()
	m, errs := accesslog.ParseMapping("mapping.yaml", []byte(trafficMapping))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	dir := writeRules(t, map[string]string{"r.yaml": trafficRules(lanes == 1)})
	tree, err := simulate.LoadRules(dir, false, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules := simulate.Rules{Directory: dir, Tree: tree}
	served := r.served(t, rules, lanes)

	seen, wrong, over := 0, 0, 0
	in, out := io.Pipe()
	go func() { out.CloseWithError(r.write(out)) }()
	_, err = simulate.Run(t.Context(), simulate.Options{
		Rules: rules, Mapping: m, Window: time.Second, Logs: []simulate.Log{{Name: "log", Open: func() (io.ReadCloser, error) { return in, nil }}},
		Verdicts: func(v *simulate.Verdict) error {
			i := displaced(v.Line - 1)
			if seen++; v.Code == "OVER_LIMIT" {
				over++
			}
			if v.Code != served[i].String() {
				if wrong++; wrong <= 10 {
					t.Errorf("request %d of %s at %s: %s, the server said %s", i, v.Customer, v.Time, v.Code, served[i])
				}
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if wrong > 0 || seen != r.requests || over < seen/20 || over > seen*19/20 {
		t.Errorf("%d of %d verdicts differ; %d requests were denied", wrong, seen, over)
	}
	t.Logf("%d verdicts are the server's; %d of them deny", seen-wrong, over)
}

var trafficStart = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// A simulation gives the same verdicts as the server. With a limit that all customers share, the server gets one
// request at a time. Otherwise customers are served concurrently.
func TestSimulateJudgesAsTheServer(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel() // it spends most of its time waiting
	madeUpLog{requests: 20_480, customers: 200, start: trafficStart}.compare(t, 1)
	madeUpLog{requests: 20_480, customers: 1500, start: trafficStart}.compare(t, 16)
}

// TestSoakSimulate does the same with ten million requests, nearly three hours of a log, and measures the program. Its
// memory must not depend on the number of requests.
func TestSoakSimulate(t *testing.T) {
	racetest.Sequential(t)
	requests, soak := 204_800, os.Getenv("RATELIMITD_SOAK") != ""
	if soak {
		requests = 10_000_384
	}
	r := madeUpLog{requests: requests, customers: 20_000, start: trafficStart}
	t.Run("memory", r.measure)
	if soak {
		t.Run("verdicts", func(t *testing.T) { r.compare(t, 16) })
	}
}

// measure replays the log in a separate process, which reads it from a pipe.
func (r madeUpLog) measure(t *testing.T) {
	t.Helper()
	dir := writeRules(t, map[string]string{"r.yaml": trafficRules(true)})
	mapping := filepath.Join(t.TempDir(), "mapping.yaml")
	if err := os.WriteFile(mapping, []byte(trafficMapping), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, nil, "simulate", "--rules", dir, "--mapping", mapping, "--log", "-", "--reorder", "1s")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var written countedBytes
	err = r.write(io.MultiWriter(in, &written))
	most := peak(cmd.Process.Pid) // only bytes in the pipe are still unread
	if err := errors.Join(err, in.Close(), cmd.Wait()); err != nil {
		t.Fatalf("%v\n%s", err, &text)
	}
	took := time.Since(began)
	if want := fmt.Sprintf("%d requests of", r.requests); !strings.Contains(strings.ReplaceAll(text.String(), ",", ""), want) {
		t.Errorf("not %q:\n%s", want, &text)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("%d requests, %d MB of log: %s, %s of processors, %.0f requests per second of one processor, at most %d MB of memory",
		r.requests, written>>20, took.Round(time.Millisecond), cpu.Round(time.Millisecond), float64(r.requests)/cpu.Seconds(), most>>10)
	if most > 200<<10 && !racetest.On { // the race detector needs several times as much
		t.Errorf("the process needed %d MB", most>>10)
	}
}

// peak returns the most memory that a process has used so far, in KiB, or 0 where the system does not report it. The
// process must be running: for an ended one the system reports at least its parent's memory.
func peak(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// countedBytes counts the bytes that are written to it.
type countedBytes int64

func (c *countedBytes) Write(b []byte) (int, error) {
	*c += countedBytes(len(b))
	return len(b), nil
}
