package ruletest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// replenished is the arithmetic of the Redis rate limiter of Spring Cloud Gateway. Its bucket starts full and has a
// clock of whole seconds. With each request it gets the tokens of all seconds that started since the last one.
type replenished struct {
	rate, capacity int64 // replenishRate, burstCapacity
	tokens, second int64 // tokens left by the last request, and its second
}

func (r *replenished) take(now time.Time, requested int64) bool {
	s := now.Unix()
	r.tokens = min(r.capacity, r.tokens+max(0, s-r.second)*r.rate)
	r.second = s
	if r.tokens < requested {
		return false
	}
	r.tokens -= requested
	return true
}

// The rules of the cookbook decide as Spring Cloud Gateway does. Buckets that are refilled continuously pass other
// requests.
func TestCookbookSpringCloudGateway(t *testing.T) {
	racetest.Sequential(t)
	const name = shipped + "/cookbook/spring_cloud_gateway.yaml"
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		refill, route  string
		rate, capacity int64
		most           int64         // tokens of a request
		pause          time.Duration // between two requests, at most
		differ         bool
	}{
		{"interval", "orders", 10, 20, 1, 100 * time.Millisecond, false},
		{"interval", "orders", 10, 20, 21, time.Second, false},
		{"interval", "report", 1, 60, 60, 40 * time.Second, false},
		{"greedy", "orders", 10, 20, 1, 100 * time.Millisecond, true},
	} {
		rules := strings.ReplaceAll(string(file), "refill: interval", "refill: "+c.refill)
		tree, errs := config.Compile([]config.File{{Name: name, Data: []byte(rules)}}, config.CompileOptions{})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
		l.Swap(tree, limiter.Settings{})
		r := rand.New(rand.NewPCG(1, 2))
		model := replenished{rate: c.rate, capacity: c.capacity, tokens: c.capacity}
		request := limiter.Request{Domain: "cookbook_spring_cloud_gateway", Descriptors: []limiter.Descriptor{
			{Entries: []descriptor.Entry{{Key: "route", Value: c.route}, {Key: "user", Value: "ann"}}},
		}}
		var d limiter.Decision
		const requests = 70000
		passed, different := 0, 0
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		for range requests {
			now = now.Add(time.Duration(r.Int64N(int64(c.pause))))
			tokens := 1 + r.Int64N(c.most)
			request.Hits = uint32(tokens)
			if err := l.Decide(t.Context(), now, &request, &d); err != nil {
				t.Fatal(err)
			}
			want := model.take(now, tokens)
			if want {
				passed++
			}
			if want != (d.Code == limiter.OK) {
				different++
			}
		}
		t.Logf("%s, %s: %d of %d pass, %d are decided differently (%.2f %%)", c.route, c.refill, passed, requests, different, 100*float64(different)/requests)
		if passed < requests/100 || passed > requests*99/100 {
			t.Errorf("%s, %s: %d of %d requests pass: this says nothing", c.route, c.refill, passed, requests)
		}
		if c.differ != (different > 0) {
			t.Errorf("%s, %s: %d decisions differ", c.route, c.refill, different)
		}
	}
}

var (
	commentedItems = regexp.MustCompile(`(?m)^# rate_limits:\n((?:^# .*\n)+)domain: \w+$`)
	shownAction    = regexp.MustCompile(`(?m)^#   - \{(\w+): \{(.*)\}\}$`)
	actionKey      = regexp.MustCompile(`\bdescriptor_key: (\w+)`)
	actionValue    = regexp.MustCompile(`\bdescriptor_value: (.+?)(?:, headers: .*)?$`)
)

// action makes one entry. Its value is text that the file shows, or a part of the request.
type action struct {
	key, value string
	fixed      bool
}

// items returns the items that the rate_limits in the comment of a rule file send.
func items(t *testing.T, file string) [][]action {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := commentedItems.FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no rate_limits of Envoy in the comment above its domain", file)
	}
	var all [][]action
	for _, item := range strings.Split(string(m[1]), "# - actions:\n")[1:] {
		var actions []action
		for _, a := range shownAction.FindAllStringSubmatch(item, -1) {
			made := action{key: a[1]} // Envoy's own key, such as remote_address
			if k := actionKey.FindStringSubmatch(a[2]); k != nil {
				made.key = k[1]
			}
			if v := actionValue.FindStringSubmatch(a[2]); v != nil {
				made.value, made.fixed = strings.Trim(v[1], `"`), true
			}
			actions = append(actions, made)
		}
		all = append(all, actions)
	}
	return all
}

// sends reports whether an item of rate_limits sends these entries. The entries of a test may lack the one that names a
// reservation.
func sends(item []action, entries []descriptor.Entry) bool {
	if last := len(item) - 1; last >= 0 && item[last].key == descriptor.ReserveID && entries[len(entries)-1].Key != descriptor.ReserveID {
		item = item[:last]
	}
	return slices.EqualFunc(item, entries, func(a action, e descriptor.Entry) bool {
		return a.key == e.Key && (!a.fixed || a.value == e.Value)
	})
}

// The rate_limits in each cookbook file reach all rules of the file: for each rule an item sends a descriptor of the
// tests that the rule matches. A test with Envoy shows that Envoy reads these items.
func TestCookbookActionsReachEachRule(t *testing.T) {
	racetest.Sequential(t)
	tests, _, err := Find([]string{shipped + "/cookbook"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(strings.TrimSuffix(filepath.Base(test), "_test.yaml"), func(t *testing.T) {
			s, errs := load(test)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			tree, name, errs := s.compile()
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			all := items(t, strings.TrimSuffix(test, "_test.yaml")+".yaml")
			reached := make(map[*descriptor.Rule]bool)
			for _, c := range s.cases {
				for _, st := range c.steps {
					for i := range st.request.Descriptors {
						entries := st.request.Descriptors[i].Entries
						rule := tree.Domain(name).Match(entries)
						if rule == nil {
							rule = tree.Domain(name).MatchNamed(entries)
						}
						if slices.ContainsFunc(all, func(item []action) bool { return sends(item, entries) }) {
							reached[rule] = true
						}
					}
				}
			}
			for _, r := range tree.Rules {
				if !reached[r] {
					t.Errorf("no item of rate_limits sends a descriptor for %s that a test has too", r.Path)
				}
			}
		})
	}
}
