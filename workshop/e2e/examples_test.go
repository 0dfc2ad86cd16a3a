package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// published are the bootstrap files that the documentation offers for copying.
var published = []struct {
	name, config, rules string
	header              string
	limit               int
}{
	{"envoy", "../../examples/envoy/envoy.yaml", "../../examples/envoy/rules", "x-api-key", 3},
	{"compose", "../../deploy/compose/envoy.yaml", "../../deploy/compose/rules", "x-user-id", 5},
}

// startPublished starts Envoy on a published file. It changes only addresses and timeouts: the first service replaces
// ratelimitd-1 and the only address of the examples, the second replaces ratelimitd-2. If a file has only one service,
// it adds the second.
func startPublished(t *testing.T, config string, first, second *service) *envoy {
	t.Helper()
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	const only = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}}"
	endpoint := func(s *service) string { return strings.Replace(only, "8081", port(s.GRPC), 1) }
	at := func(s *service) string { return "address: 127.0.0.1, port_value: " + port(s.GRPC) }
	changed := strings.NewReplacer(
		"port_value: 10000}", "port_value: 0}",
		"port_value: 9901}", "port_value: 0}",
		"address: 0.0.0.0,", "address: 127.0.0.1,",
		"port_value: 10001}", "port_value: "+freePort(t)+"}",
		only, endpoint(first)+", "+endpoint(second),
		"address: ratelimitd-1, port_value: 8081", at(first),
		"address: ratelimitd-2, port_value: 8081", at(second),
		"timeout: 0.02s", "timeout: 10s", // the machine may be slow
		"timeout: 0.05s", "timeout: 10s",
	).Replace(string(text))
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startEnvoyOn(t, "envoy", file)
	e.awaitHealthy(t, "ratelimitd", 2)
	return e
}

func port(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}

// The published files work as the text about them describes.
func TestExamples(t *testing.T) {
	for _, c := range published {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, "ratelimitd", c.rules)
			e := startPublished(t, c.config, s, s) // only one service gets calls: its memory store is enough
			var codes []int
			for try := 0; ; try++ { // tries again if a minute ended during the test
				began := time.Now().Truncate(time.Minute)
				codes = e.codes(t, c.limit+1, "front", "/", c.header, "somebody "+strconv.Itoa(try))
				if time.Now().Truncate(time.Minute).Equal(began) {
					break
				}
			}
			want := append(slices.Repeat([]int{200}, c.limit), 429)
			if !slices.Equal(codes, want) {
				t.Errorf("the answers are %v, want %v", codes, want)
			}
			if other := e.codes(t, 1, "front", "/", c.header, "somebody else"); other[0] != 200 {
				t.Errorf("somebody else got %d", other[0])
			}
		})
	}
}

// The tutorial puts the example's Envoy in front of its rules by changing the domain: 60 requests of an address pass,
// the 61st does not.
func TestTutorialWithEnvoy(t *testing.T) {
	needsEnvoy(t)
	page, err := os.ReadFile("../../docs/learn/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := shownRules.FindStringSubmatch(string(page))
	change := regexp.MustCompile(`sed 's/(.+)/(.+)/' examples/envoy/envoy.yaml > ~/tutorial/proxy.yaml`).FindStringSubmatch(string(page))
	answers := regexp.MustCompile(`(?m)^ +(\d+) 200\n +(\d+) 429$`).FindStringSubmatch(string(page))
	if shown == nil || change == nil || answers == nil {
		t.Fatal("the tutorial shows no rules, no configuration of Envoy, or no answers")
	}
	example, err := os.ReadFile("../../examples/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(proxy, []byte(strings.Replace(string(example), change[1], change[2], 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for { // tries again if a minute ended during the test
		// as the tutorial corrects it
		s := startService(t, "ratelimitd", rules(t, strings.Replace(shown[1], "minutes", "minute", 1)))
		e := startPublished(t, proxy, s, s)
		began := time.Now().Truncate(time.Minute)
		counted := make(map[int]int)
		for _, code := range e.codes(t, 61, "front", "/") {
			counted[code]++
		}
		if !time.Now().Truncate(time.Minute).Equal(began) {
			continue
		}
		if got := []string{strconv.Itoa(counted[200]), strconv.Itoa(counted[429])}; !slices.Equal(got, answers[1:]) {
			t.Errorf("%s requests pass and %s are denied, the tutorial says %s", got[0], got[1], answers[1:])
		}
		return
	}
}

var composeDrain = regexp.MustCompile(`(?m)^ +(RATELIMITD_DRAIN_DELAY): (\S+)$`)

// An update of ratelimitd right after Envoy's start loses no request. The published files are unchanged, with the drain
// delay of docker-compose.yml. If no_traffic_interval is not set, Envoy's health checker waits for a minute and keeps
// calling a service that is gone.
func TestPublishedRestart(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	drain := composeDrain.FindSubmatch(text)
	if drain == nil {
		t.Fatal("docker-compose.yml sets no RATELIMITD_DRAIN_DELAY")
	}
	for _, c := range published {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var services []*service
			for _, name := range [...]string{"ratelimitd 1", "ratelimitd 2"} {
				services = append(services, startService(t, name, c.rules, "RATELIMITD_DRAIN_DELAY="+string(drain[2])))
			}
			e := startPublished(t, c.config, services[0], services[1])
			l := startLoad(t, "front", "/", 20, e)
			l.next(t, 100)
			for _, s := range services {
				s.restart(t)
				await(t, s.name+" to be asked again", func(ctx context.Context) error {
					m, err := s.readMetrics(ctx)
					if err == nil && m.answers().sum() < 20 {
						err = fmt.Errorf("it answered %+v", m.answers())
					}
					return err
				})
			}
			all := l.stop()
			t.Log(all)
			if all.Failed != 0 {
				t.Errorf("requests were lost: %v", all)
			}
			// These files let requests pass when the service does not answer. Only Envoy counts such requests.
			if got, want := e.verdicts(t, ""), (verdicts{OK: all.Answered, OverLimit: all.Denied}); got != want {
				t.Errorf("Envoy counted %+v, want %+v", got, want)
			}
		})
	}
}
