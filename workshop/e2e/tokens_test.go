package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// budgetExample is the published Envoy that holds budgets of tokens. Its tests run it as readers copy it.
const budgetExample = "../../examples/llm-budget/envoy.yaml"

// startBudget starts the published Envoy before a provider, or before its own stand-in, with these services. It changes
// only addresses and timeouts, and adds the arguments in more.
func startBudget(t *testing.T, p *provider, more []string, services ...*service) *envoy {
	t.Helper()
	text, err := os.ReadFile(budgetExample)
	if err != nil {
		t.Fatal(err)
	}
	endpoint := func(port string) string {
		return "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: " + port + "}}}}"
	}
	var replicas []string
	for _, s := range services {
		replicas = append(replicas, endpoint(port(s.GRPC)))
	}
	standIn := freePort(t)
	provider := standIn
	if p != nil {
		provider = port(p.addr)
	}
	changed := strings.NewReplacer(append(more,
		endpoint("10001"), endpoint(provider),
		endpoint("8081"), strings.Join(replicas, ", "),
		"port_value: 10000}", "port_value: 0}",
		"port_value: 10001}", "port_value: "+standIn+"}",
		"port_value: 9901}", "port_value: 0}",
		"timeout: 0.05s", "timeout: 10s", // the machine may be slow
	)...).Replace(string(text))
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return startEnvoyOn(t, "envoy", file)
}

// call is a request for tokens.
type call struct {
	dialect
	stream       bool
	most, output int    // the max_tokens of the request, and the tokens of the answer
	end          string // how its answer ends

	model string // "" is small
	body  string
}

// text is the body of the request.
func (c call) text(t *testing.T) string {
	t.Helper()
	return c.request(t, cmp.Or(c.model, "small"), c.most, c.stream)
}

// input is how many tokens the provider counts for the body: fewer than Envoy estimates.
func (c call) input() int { return len(c.body) / 5 }

// estimate is how many tokens Envoy estimates for the body.
func (c call) estimate() int { return (len(c.body) + 1) / 2 }

// reserved is how many tokens Envoy reserves.
func (c call) reserved() int {
	if c.most < 1 || c.most > 4096 {
		return c.estimate() + 4096
	}
	return c.estimate() + c.most
}

// charged is how many tokens the request must cost the budget in the end.
func (c call) charged() int {
	switch {
	case c.end == failing:
		return 0
	case c.end == "" || c.end == failingOnce:
		return c.input() + c.output
	case !c.stream:
		return c.reserved()
	}
	sent := len(c.sent())
	if c.end == withoutUsage {
		sent += (c.output - c.output/2) * len(c.event(c.word()))
	}
	return min(c.estimate()+sent/4, c.reserved())
}

// sent is the first half of a stream.
func (c call) sent() string {
	if c.end == withoutUsage {
		return c.half(0, c.output)
	}
	return c.half(c.input(), c.output)
}

// waveResult is the result of requests that ran at the same time.
type waveResult struct {
	passed, denied, reserved, used, charged int
	beyond                                  int // how many more tokens than allowed requests used
}

// run sends requests at the same time. None ends before all are decided.
func (p *provider) run(t *testing.T, e *envoy, user string, calls []call) (sum waveResult) {
	t.Helper()
	var decided, done sync.WaitGroup
	var mu sync.Mutex
	decided.Add(len(calls))
	end := p.begin(&decided)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for _, c := range calls {
		c.body = c.text(t)
		done.Go(func() {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.ports["front"]+c.at(c.stream), strings.NewReader(c.body))
			if err != nil {
				panic(err)
			}
			for name, value := range map[string]string{
				"Content-Type": "application/json", "X-User": user, "X-Team": user, "X-Request-Id": "constant",
				"X-Input": strconv.Itoa(c.input()), "X-Output": strconv.Itoa(c.output), "X-End": c.end,
			} {
				req.Header.Set(name, value)
			}
			tell := sync.OnceFunc(decided.Done)
			if !c.stream {
				tell = func() {} // the provider tells, because an answer without a stream comes only at the end of the wave
			}
			defer tell()
			if c.end == left && !c.stream {
				go func() {
					decided.Wait()
					leave()
				}()
			}
			res, err := client.Do(req)
			if err != nil && (c.end != left || c.stream) {
				t.Errorf("%s: %v", c.name, err)
				return
			}
			code := http.StatusOK
			if err == nil {
				defer res.Body.Close()
				code = res.StatusCode
			}
			mu.Lock()
			switch {
			case code == http.StatusTooManyRequests:
				sum.denied++
			case code == http.StatusOK || code == http.StatusServiceUnavailable && c.end == failing:
				sum.passed++
				sum.reserved += c.reserved()
				sum.used += c.input() + c.output
				sum.charged += c.charged()
				sum.beyond += max(0, c.output-c.most)
			default:
				t.Errorf("%s: status %d", c.name, code)
			}
			mu.Unlock()
			if code == http.StatusTooManyRequests && !c.stream {
				decided.Done()
			}
			if code != http.StatusOK || err != nil {
				return
			}
			if c.stream {
				if _, err := io.ReadFull(res.Body, make([]byte, len(c.sent()))); err != nil {
					t.Errorf("%s: read the first half: %v", c.name, err)
				}
				tell()
			}
			decided.Wait()
			if c.end == left {
				return
			}
			if _, err := io.Copy(io.Discard, res.Body); (err == nil) != (c.end != aborted) {
				t.Errorf("%s: the answer ended with %v", c.name, err)
			}
		})
	}
	decided.Wait()
	end()
	done.Wait()
	return sum
}

// awaitUsed waits until a counter has exactly this number of hits. Then all reserved hits are committed.
func awaitUsed(t *testing.T, s *service, want int, path ...string) {
	t.Helper()
	await(t, "all requests to be charged", func(ctx context.Context) error {
		got, err := usedBy(ctx, s, "llm", path...)
		if err == nil && got != want {
			err = fmt.Errorf("%d tokens are charged, want %d", got, want)
		}
		return err
	})
}

const userBudget = `
domain: llm
descriptors:
  - {key: user, reservations: {ttl: 15m, max_ttl: 15m}, rate_limit: {unit: day, requests_per_unit: %[1]d}}
`

// startBudgetService starts a service with rules and an operator's token.
func startBudgetService(t *testing.T, rule string, env ...string) *service {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(overrideToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startService(t, "ratelimitd", rules(t, rule), append(env, "RATELIMITD_ADMIN_TOKEN_FILE="+tokens)...)
}

// No matter how a request ends, the budget loses the tokens that the provider reports. If it reports none, the budget
// loses at least the used tokens, and at most the reserved ones.
func TestTokensOfEachEnd(t *testing.T) {
	p := startProvider(t)
	s := startBudgetService(t, fmt.Sprintf(userBudget, 1_000_000))
	e := startBudget(t, p, nil, s)
	for _, d := range dialects {
		for _, stream := range []bool{true, false} {
			for _, c := range []call{
				{most: 400, output: 100},
				{most: 0, output: 100},
				{most: 1_000_000_000_000, output: 100},
				{most: 400, output: 100, end: withoutUsage},
				{most: 400, output: 3, end: withoutUsage},
				{most: 400, output: 3, end: left},
				{most: 400, output: 100, end: left},
				{most: 400, output: 3, end: aborted},
				{most: 400, output: 100, end: aborted},
				{most: 400, output: 100, end: failing},
				{most: 400, output: 100, end: failingOnce},
			} {
				c.dialect, c.stream = d, stream
				name := fmt.Sprintf("%s/stream %t/%d of %d/%s", d.name, stream, c.output, c.most, c.end)
				t.Run(name, func(t *testing.T) {
					w := p.run(t, e, name, []call{c})
					if w.passed != 1 {
						t.Fatalf("%+v", w)
					}
					awaitUsed(t, s, w.charged, "user", name)
					awaitCommitted(t, s)
				})
			}
		}
	}
	awaitCommitted(t, s)
}

// awaitCommitted waits until each reservation of a service is committed.
func awaitCommitted(t *testing.T, services ...*service) {
	t.Helper()
	await(t, "each reservation to be committed", func(ctx context.Context) error {
		var reserved, committed int
		for _, s := range services {
			m, err := s.readMetrics(ctx)
			if err != nil {
				return err
			}
			reserved += int(m[`ratelimitd_reservations_total{result="reserved"}`])
			committed += int(m[`ratelimitd_reservations_total{result="committed"}`])
			committed += int(m[`ratelimitd_reservations_total{result="cancelled"}`]) // committed with 0 hits
		}
		if reserved == 0 || reserved != committed {
			return fmt.Errorf("%d of %d are", committed, reserved)
		}
		return nil
	})
}

// requests draws requests of different sizes.
func requests(n int, seed uint64, stream func(i int) bool) []call {
	random := rand.New(rand.NewPCG(seed, 1))
	all := make([]call, n)
	for i := range all {
		most := 8 + random.IntN(93)
		all[i] = call{dialect: dialects[i%len(dialects)], stream: stream(i), most: most, output: 1 + random.IntN(most)}
	}
	all[0] = call{dialect: dialects[0], most: 4, output: 4} // so small that it fits into a twentieth of the budget
	return all
}

// spend sends waves of 64 parallel requests until a whole wave is denied. It returns how many tokens the earlier waves
// used.
func spend(t *testing.T, p *provider, e *envoy, s *service, user string, seed uint64, stream func(i int) bool) (total waveResult, waves int) {
	t.Helper()
	for {
		w := p.run(t, e, user, requests(64, 100*seed+uint64(waves), stream))
		total.used += w.used
		awaitUsed(t, s, total.used, "user", user)
		if waves++; w.passed == 0 {
			return total, waves
		}
	}
}

// 64 parallel requests never use more than their user's budget, and leave less than a twentieth of it. Other requests
// follow until none fits. Half the runs count in one process, the others in Redis with two.
func TestTokenBudgetHolds(t *testing.T) {
	const budget, runs = 1000, 20
	p := startProvider(t)
	rule := fmt.Sprintf(userBudget, budget)
	alone := startBudgetService(t, rule)
	one := startBudget(t, p, nil, alone)
	redis := "REDIS_URL=" + redistest.Start(t).Addr
	both := []*service{startBudgetService(t, rule, redis), startBudgetService(t, rule, redis)}
	two := startBudget(t, p, nil, both...)
	for run := range runs {
		e, s := one, alone
		if run >= runs/2 {
			e, s = two, both[run%2]
		}
		total, waves := spend(t, p, e, s, fmt.Sprintf("user %d", run), uint64(run), func(i int) bool { return i%2 == 0 })
		t.Logf("run %d: %d tokens of %d, in %d waves of 64 requests at once", run+1, total.used, budget, waves)
		if total.used > budget || total.used < budget*95/100 {
			t.Errorf("run %d used %d tokens of %d", run+1, total.used, budget)
		}
	}
	awaitCommitted(t, alone)
	awaitCommitted(t, both...)
	for i, s := range both {
		if n := answered(t, s).sum(); n < 64 {
			t.Errorf("process %d of 2 has decided %d times: then this test shows nothing of both", i+1, n)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.attempts["constant"]; n > 0 {
		t.Errorf("%d requests have the ID that a client chose", n)
	}
}

// Without a reservation, all requests that arrive together pass, and all are charged.
func TestTokensLookThenCharge(t *testing.T) {
	const budget = 1000
	p := startProvider(t)
	s := startBudgetService(t, strings.Replace(fmt.Sprintf(userBudget, budget), "reservations: {ttl: 15m, max_ttl: 15m}, ", "", 1))
	e := startBudget(t, p, []string{
		`{format: "%FILTER_STATE(llm.reserved:PLAIN)%"}`, "{number: 0}",
		"- request_headers: {header_name: x-request-id, descriptor_key: reserve_id}", "",
		"- request_headers: {header_name: x-request-id, descriptor_key: commit_id}", "",
	}, s)
	for _, stream := range []bool{true, false} {
		user := fmt.Sprintf("stream %t", stream)
		total, _ := spend(t, p, e, s, user, 1, func(int) bool { return stream })
		t.Logf("%s: %d tokens of %d", user, total.used, budget)
		if total.used < 2*budget {
			t.Errorf("64 requests at once used %d tokens: then they show nothing", total.used)
		}
	}
}

// A model that writes more than the request allowed exceeds the budget at most by the excess.
func TestTokensBeyondEstimates(t *testing.T) {
	const budget = 1000
	p := startProvider(t)
	s := startBudgetService(t, fmt.Sprintf(userBudget, budget))
	e := startBudget(t, p, nil, s)
	calls := requests(64, 7, func(i int) bool { return i%2 == 0 })
	for i := range calls {
		calls[i].output = 3 * calls[i].most
	}
	w := p.run(t, e, "ada", calls)
	awaitUsed(t, s, w.used, "user", "ada")
	if w.reserved > budget || w.used > budget+w.beyond {
		t.Errorf("%d tokens are reserved and %d used of %d; more than the requests allowed are %d", w.reserved, w.used, budget, w.beyond)
	}
	if w.used <= budget {
		t.Errorf("%d tokens are used: then this test shows nothing", w.used)
	}
}

// The published rules: a token of the large model costs a team 16 times as much, and a user as much as any other.
func TestTokensOfTheExample(t *testing.T) {
	p := startProvider(t)
	text, err := os.ReadFile("../../examples/llm-budget/rules/llm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := startBudgetService(t, string(text))
	e := startBudget(t, p, nil, s)
	small := call{dialect: dialects[0], most: 100, output: 20}
	w := p.run(t, e, "ada", []call{small})
	awaitUsed(t, s, w.used, "user", "ada")
	awaitUsed(t, s, w.used, "team", "ada", "model", "small")
	large := small
	large.model = "large"
	more := p.run(t, e, "ada", []call{large})
	awaitUsed(t, s, w.used+more.used, "user", "ada")
	awaitUsed(t, s, w.used+16*more.used, "team", "ada", "model", "large")
	awaitUsed(t, s, w.used+16*more.used, "team", "ada", "model", "small") // all models use one budget
	if len(p.bodies) != 1 || p.bodies[0] != large.text(t) {
		t.Errorf("the provider got %q", p.bodies)
	}
	for name, body := range map[string]string{"no body": "", "no JSON": "word", "a number that is too large": `{"messages": [], "max_tokens": 18446744073709551615}`} {
		// a request like this may use more than the user has
		if code := e.post(t, "/v1/chat/completions", body); code == http.StatusOK {
			t.Errorf("%s: %d", name, code)
		}
	}
}

// post sends a body as ada and returns the status of the answer.
func (e *envoy) post(t *testing.T, path, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.ports["front"]+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", "ada")
	req.Header.Set("X-Team", "ada")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// While Redis is down, the published Envoy denies requests: nothing is spent.
func TestTokensWithoutRedis(t *testing.T) {
	p := startProvider(t)
	redis := redistest.Start(t)
	s := startBudgetService(t, fmt.Sprintf(userBudget, 1000), "REDIS_URL="+redis.Addr)
	e := startBudget(t, p, nil, s)
	w := p.run(t, e, "ada", []call{{dialect: dialects[0], most: 10, output: 10}})
	awaitUsed(t, s, w.used, "user", "ada")
	redis.Kill(t)
	if code := e.post(t, "/v1/chat/completions", `{"messages": [], "max_tokens": 10}`); code != http.StatusServiceUnavailable {
		t.Errorf("without Redis: %d", code)
	}
}

// budgetsPage explains the published Envoy.
const budgetsPage = "../../docs/do/llm-budgets.md"

var pageBlock = regexp.MustCompile("(?s)```(yaml|console)\n(.*?)```\n")

// The commands of the page print the output that it shows, and its settings are those of the published files.
func TestBudgetsPage(t *testing.T) {
	page, err := os.ReadFile(budgetsPage)
	if err != nil {
		t.Fatal(err)
	}
	rule, err := os.ReadFile("../../examples/llm-budget/rules/llm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(budgetExample)
	if err != nil {
		t.Fatal(err)
	}
	s := startBudgetService(t, string(rule))
	e := startBudget(t, nil, nil, s)
	published := unindented(string(rule) + string(config))
	directory := t.TempDir()
	commands, settings := 0, 0
	for _, m := range pageBlock.FindAllStringSubmatch(string(page), -1) {
		language, text := m[1], m[2]
		if language == "yaml" && strings.Contains(text, "io.envoy.ai_gateway") {
			continue // TestAIGateway runs them
		}
		if language == "yaml" {
			settings++
			if !strings.Contains(published, unindented(text)) {
				t.Errorf("the published files do not contain:\n%s", text)
			}
			continue
		}
		commands++
		command, want, _ := strings.Cut(strings.TrimPrefix(text, "$ "), "\n")
		cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(command, "localhost:10000", e.ports["front"]))
		cmd.Dir = directory
		if got, err := cmd.Output(); err != nil || strings.TrimSpace(string(got)) != strings.TrimSpace(want) {
			t.Errorf("%s: %v\n%s\nThe page says:\n%s", command, err, got, want)
		}
	}
	if commands < 2 || settings < 4 {
		t.Errorf("the page has %d commands and %d settings", commands, settings)
	}
	awaitUsed(t, s, 10, "user", "ada")
}

// unindented returns a text without the spaces at the start of its lines.
func unindented(text string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		all.WriteString(strings.TrimLeft(line, " "))
	}
	return all.String()
}

// usedBy asks a service how much a counter has used. Its path is keys and values in turn.
func usedBy(ctx context.Context, s *service, domain string, path ...string) (int, error) {
	var entries []map[string]string
	for i := 0; i < len(path); i += 2 {
		entries = append(entries, map[string]string{"key": path[i], "value": path[i+1]})
	}
	question, err := json.Marshal(object{"domain": domain, "entries": entries})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Debug+"/ratelimitd.admin.v1.CounterService/Peek", bytes.NewReader(question))
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
