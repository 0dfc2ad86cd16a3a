package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// model is an upstream that streams tokens, as language models do: one event for each. It sends x-tokens of them and ignores
// x-max-tokens. It sends the first half at once and the rest when its wave continues. A stream with x-abort gets no rest.
type model struct {
	addr string
	wave atomic.Pointer[chan struct{}]

	mu  sync.Mutex
	ids map[string]int // streams by x-request-id
}

func startModel(t *testing.T) *model {
	t.Helper()
	m := &model{ids: make(map[string]int)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wave := *m.wave.Load()
		m.mu.Lock()
		m.ids[r.Header.Get("X-Request-Id")]++
		m.mu.Unlock()
		tokens, _ := strconv.Atoi(r.Header.Get("X-Tokens"))
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(n int) {
			_, _ = io.WriteString(w, strings.Repeat("data: word\n\n", n))
			_ = http.NewResponseController(w).Flush()
		}
		send(tokens / 2)
		if r.Header.Get("X-Abort") != "" {
			wave = nil
		}
		select {
		case <-wave:
			send(tokens - tokens/2)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	m.addr = server.Listener.Addr().String()
	return m
}

// gatewayPage has the settings of Envoy for a gateway of language models. They are tested as readers copy them.
const gatewayPage = "../../docs/do/cookbook.md"

// gatewaySettings returns a block of the page by the comment before it.
func gatewaySettings(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(gatewayPage)
	if err != nil {
		t.Fatal(err)
	}
	_, block, begins := strings.Cut(string(text), "<!-- gateway: "+name+" -->\n```yaml\n")
	block, _, ends := strings.Cut(block, "```\n")
	if !begins || !ends {
		t.Fatalf("%s has no settings for %s", gatewayPage, name)
	}
	return block
}

// stream is what a client asks for.
type stream struct {
	estimate, tokens int
	abort            bool
}

// used is how many tokens the stream delivers.
func (s stream) used() int {
	if s.abort {
		return s.tokens / 2
	}
	return s.tokens
}

// streams draws streams of 0.1 to most times their estimate. One of five is aborted.
func streams(n int, most float64) []stream {
	random := rand.New(rand.NewPCG(1, uint64(most)))
	all := make([]stream, n)
	for i := range all {
		estimate := 20 + random.IntN(41)
		all[i] = stream{estimate, max(2, int(float64(estimate)*(0.1+random.Float64()*(most-0.1)))), i%5 == 0}
	}
	return all
}

// waveResult is what became of streams that ran at the same time.
type waveResult struct {
	passed, refused, aborted int
	estimated, used, beyond  int // tokens of the requests that passed; beyond: how many more tokens than estimated requests used, where they used more
}

// run sends streams at the same time. No stream ends before all are decided.
func (m *model) run(t *testing.T, e *envoy, path, tenant string, all []stream) (sum waveResult) {
	t.Helper()
	wave := make(chan struct{})
	m.wave.Store(&wave)
	var decided, done sync.WaitGroup
	var mu sync.Mutex
	decided.Add(len(all))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for _, s := range all {
		done.Go(func() {
			var once sync.Once
			decide := func() { once.Do(decided.Done) }
			defer decide()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.ports["main"]+path, http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			for name, value := range map[string]string{
				"X-Tenant": tenant, "X-Max-Tokens": strconv.Itoa(s.estimate), "X-Tokens": strconv.Itoa(s.tokens),
				"X-Request-Id": "constant", "X-Forwarded-For": "203.0.113.7", // from outside: Envoy makes an ID of its own
			} {
				req.Header.Set(name, value)
			}
			if s.abort {
				req.Header.Set("X-Abort", "yes")
			}
			res, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			decide()
			mu.Lock()
			switch {
			case res.StatusCode == http.StatusTooManyRequests:
				sum.refused++
			case res.StatusCode != http.StatusOK:
				t.Errorf("status %d", res.StatusCode)
			case s.abort:
				sum.aborted++
				fallthrough
			default:
				sum.passed++
				sum.estimated += s.estimate
				sum.used += s.used()
				sum.beyond += max(0, s.used()-s.estimate)
			}
			mu.Unlock()
			if res.StatusCode != http.StatusOK {
				return
			}
			decided.Wait()
			lines := bufio.NewScanner(res.Body)
			for n := 0; n < 2*s.used(); n++ {
				if !lines.Scan() {
					t.Errorf("the stream ended after %d of %d lines: %v", n, 2*s.used(), lines.Err())
					return
				}
			}
		})
	}
	decided.Wait()
	close(wave)
	done.Wait()
	return sum
}

// gateway starts an Envoy before the model that asks these services: under /check it checks first and charges afterwards, under
// /reserve it reserves first.
func (m *model) gateway(t *testing.T, services ...*service) *envoy {
	t.Helper()
	return startEnvoy(t, bootstrap{
		Clusters: []cluster{
			{Name: "upstream", Endpoints: []string{m.addr}, Extra: "circuit_breakers: {thresholds: [{max_connections: 4096, max_pending_requests: 4096, max_requests: 4096}]}"},
			rls(services...),
		},
		Listeners: []listener{{
			Name:          "main",
			FiltersBefore: gatewaySettings(t, "counting"),
			Routes: perRoute("/check", `
- actions: [{request_headers: {header_name: x-tenant, descriptor_key: charged}}]
  hits_addend: {number: 0}
- actions: [{request_headers: {header_name: x-tenant, descriptor_key: charged}}]
  hits_addend: {format: "%DYNAMIC_METADATA(llm:tokens)%"}
  apply_on_stream_done: true
`) + perRoute("/reserve", gatewaySettings(t, "rate_limits")),
		}},
	})
}

// usedBy asks a service what a counter holds.
func usedBy(ctx context.Context, s *service, key, value string) (int, error) {
	body := fmt.Sprintf(`{"domain": "e2e", "entries": [{"key": %q, "value": %q}]}`, key, value)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Debug+"/ratelimitd.admin.v1.CounterService/Peek", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+overrideToken)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var answer struct {
		Counters []struct {
			Used int `json:"used,string"`
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("%s: %w", res.Status, err)
	}
	if len(answer.Counters) != 1 {
		return 0, fmt.Errorf("%s: %+v", res.Status, answer)
	}
	return answer.Counters[0].Used, nil
}

// A gateway for language models: 200 streams at the same time, of which a fifth is aborted. Check-then-charge lets all of them pass.
// With reservations, what passes was reserved: where estimates are upper bounds, the limit is never exceeded. A model that ignores its
// bound exceeds it by no more than its streams exceed their estimates. Nothing is charged twice or lost. So it is with one
// process, and with two that count in one Redis: then one of them may reserve, and the other one commit.
func TestReservedStreams(t *testing.T) {
	const limit, concurrent = 2000, 200
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(overrideToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := fmt.Sprintf(`
domain: e2e
descriptors:
  - {key: charged, rate_limit: {unit: day, requests_per_unit: %[1]d}}
  - {key: tenant, reservations: {max_share: 0.1, ttl: 2m}, rate_limit: {unit: day, requests_per_unit: %[1]d}}
`, limit)
	m := startModel(t)
	alone := startService(t, "ratelimitd", rules(t, rule), "RATELIMITD_ADMIN_TOKEN_FILE="+tokens)
	one := m.gateway(t, alone)
	fleet := startFleet(t, rule, "RATELIMITD_ADMIN_TOKEN_FILE="+tokens)
	two := m.gateway(t, fleet.services...)
	charged := func(t *testing.T, s *service, key, tenant string, want int) {
		t.Helper()
		await(t, "all streams to be charged", func(ctx context.Context) error {
			got, err := usedBy(ctx, s, key, tenant)
			if err == nil && got != want {
				err = fmt.Errorf("%d tokens are charged, want %d", got, want)
			}
			return err
		})
	}
	for _, c := range []struct {
		name, path, key string
		through         *envoy
		counted         *service // that is asked how much is used
		most            float64
		over            func(waveResult) int // how many tokens may be used at most
	}{
		{"check then charge, true estimates", "/check", "charged", one, alone, 1, nil},
		{"check then charge, false estimates", "/check", "charged", one, alone, 3, nil},
		{"reserve then commit, true estimates", "/reserve", "tenant", one, alone, 1, func(waveResult) int { return limit }},
		{"reserve then commit, false estimates", "/reserve", "tenant", one, alone, 3, func(w waveResult) int { return limit + w.beyond }},
		{"two processes, true estimates", "/reserve", "tenant", two, fleet.services[0], 1, func(waveResult) int { return limit }},
		{"two processes, false estimates", "/reserve", "tenant", two, fleet.services[1], 3, func(w waveResult) int { return limit + w.beyond }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var total waveResult
			for wave := range 2 { // the second wave uses what the first has given back
				w := m.run(t, c.through, c.path, c.name, streams(concurrent, c.most))
				total.used, total.beyond = total.used+w.used, total.beyond+w.beyond
				charged(t, c.counted, c.key, c.name, total.used)
				t.Logf("wave %d: %d passed (%d of them aborted), %d refused; estimated %d, used %d; %d of %d used, overshoot %d",
					wave+1, w.passed, w.aborted, w.refused, w.estimated, w.used, total.used, limit, max(0, total.used-limit))
				if c.over == nil {
					if wave == 0 && (w.refused > 0 || total.used <= limit) {
						t.Errorf("the streams of one moment stay below the limit: %+v; then this test shows nothing", w)
					}
					continue
				}
				if wave == 0 && (w.passed == 0 || w.aborted == 0 || w.refused == 0 || w.estimated > limit) {
					t.Errorf("%+v", w)
				}
				if most := c.over(total); total.used > most {
					t.Errorf("%d tokens are used, at most %d may be", total.used, most)
				}
			}
		})
	}
	for i, s := range fleet.services {
		if n := answered(t, s).sum(); n < concurrent/4 {
			t.Errorf("process %d of 2 has decided %d times: then this test shows nothing of both", i+1, n)
		}
	}
	t.Run("a request that does not say how much it needs", func(t *testing.T) {
		for _, most := range []string{"", "many", "-5", "nan", "1e300"} { // it needs more than one request may reserve here
			if got := one.get(t, "main", "/reserve", "x-tenant", "new", "x-max-tokens", most, "x-tokens", "2").code; got != http.StatusTooManyRequests {
				t.Errorf("x-max-tokens %q: %d", most, got)
			}
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, n := range m.ids {
		if n != 1 || id == "constant" {
			t.Errorf("%d streams have the ID %q: a client chooses it", n, id)
		}
	}
}
