package explain

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
)

func rules(t *testing.T) *descriptor.Tree {
	t.Helper()
	name := filepath.Join("testdata", "rules.yaml")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	tree, errs := config.Compile([]config.File{{Name: "rules.yaml", Data: data}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return tree
}

var noon = time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC)

func asked(descriptors ...string) (all []limiter.Descriptor) {
	for _, d := range descriptors {
		var one limiter.Descriptor
		for _, pair := range strings.Split(d, ",") {
			k, v, _ := strings.Cut(pair, "=")
			one.Entries = append(one.Entries, descriptor.Entry{Key: k, Value: v})
		}
		all = append(all, one)
	}
	return all
}

func run(t *testing.T, o Options, descriptors ...string) *Report {
	t.Helper()
	o.Tree, o.Now = rules(t), noon
	if o.Domain == "" {
		o.Domain = "edge"
	}
	if o.Descriptors == nil {
		o.Descriptors = asked(descriptors...)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func overrides(of string, n override.Numbers) *override.Set {
	o := override.Override{Identity: override.Identity{Domain: "edge", Rule: "edge.tenant", Entries: asked(of)[0].Entries}, Numbers: n}
	return override.SetOf([]override.Placed{{Override: o}})
}

func TestText(t *testing.T) {
	limited := asked("method=GET,path=/search")
	limited[0].HasLimit = true
	limited[0].Limit = limiter.RequestLimit{Requests: 50, Unit: int32(descriptor.Minute)}
	for name, c := range map[string]struct {
		o           Options
		descriptors []string
	}{
		"exact":          {Options{}, []string{"method=GET,path=/search"}},
		"wildcard":       {Options{KeyPrefix: "blue_"}, []string{"method=HEAD,path=/sales"}},
		"regex":          {Options{Settings: limiter.Settings{Quota: true}}, []string{"method=GET,path=/v2/users"}},
		"unlimited":      {Options{}, []string{"method=GET,path=q"}},
		"shadow":         {Options{Settings: limiter.Settings{OnError: descriptor.OnErrorLocal}}, []string{"method=POST"}},
		"nothing":        {Options{}, []string{"remote_address=10.2.3.4"}},
		"replaced":       {Options{}, []string{"remote_address=10.1.2.3", "remote_address=1.1.1.1", "nobody=knows"}},
		"limited":        {Options{Descriptors: limited}, nil},
		"unknown_domain": {Options{Domain: "egde"}, []string{"method=GET"}},
		"misspelt_key":   {Options{}, []string{"method=GET,paht=/search"}},
		"misspelt_value": {Options{}, []string{"method=PSOT"}},
		"another_order":  {Options{}, []string{"path=/search,method=GET"}},
		"short":          {Options{}, []string{"method=GET"}},
		"long":           {Options{}, []string{"method=POST,path=/"}},
		"overridden":     {Options{Overrides: overrides("tenant=acme", override.Numbers{Kind: override.Scale, Requests: 2 * override.One, ExpiresAt: noon.Unix() + 3600})}, []string{"tenant=acme"}},
		"blocked":        {Options{Overrides: overrides("tenant=acme", override.Numbers{Kind: override.Blocked})}, []string{"tenant=acme"}},
		"lifted":         {Options{Overrides: overrides("tenant=acme", override.Numbers{Kind: override.Unlimited})}, []string{"tenant=acme", "tenant=other"}},
		"global_shadow":  {Options{Settings: limiter.Settings{Shadow: true}}, []string{"method=GET,path=/search"}},
		"reservation":    {Options{}, []string{"model=large,reserve_id=7f3a"}},
		"scale":          {Options{}, []string{"users=57"}},
		"cost":           {Options{Settings: limiter.Settings{Headers: descriptor.HeadersIETF}}, []string{"job=export"}},
		"own_headers":    {Options{Domain: "shop"}, []string{"app=a"}},
		"enforced":       {Options{Domain: "shop"}, []string{"user=kim"}},
		"not_enforced":   {Options{Domain: "shop"}, []string{"user=ann"}},
		"bucket":         {Options{QuotaBucket: true}, []string{"method=GET,path=/search"}},
		"bucket_ordered": {Options{Domain: "shop", QuotaBucket: true}, []string{"user=kim,app=a"}},
		"control_bytes":  {Options{}, []string{"method=GET,path=/s\x1b[2J\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := WriteText(&b, run(t, c.o, c.descriptors...), false); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, "testdata/"+name+".txt", b.String())
			if strings.ContainsAny(b.String(), "\x1b\t") {
				t.Error("there is something in it that a terminal would obey")
			}
		})
	}
}

func TestColors(t *testing.T) {
	var b strings.Builder
	if err := WriteText(&b, run(t, Options{}, "method=GET,path=/search"), true); err != nil || !strings.Contains(b.String(), "\x1b[32m> values") {
		t.Errorf("%v %q", err, b.String())
	}
}

func TestJSON(t *testing.T) {
	r := run(t, Options{}, "method=GET,path=/search", "nobody=knows")
	d := &r.Descriptors[0]
	d.StateOf = "localhost:6070"
	d.Limits[0].State = &State{Used: 3, Capacity: 10, Remaining: 7, Reset: 18, ResetAt: noon}
	var b strings.Builder
	if err := WriteJSON(&b, r); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/report.json", b.String())
	var back Report
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back.Matched() != 1 {
		t.Errorf("%v, %d matched", err, back.Matched())
	}
}

func TestState(t *testing.T) {
	for want, s := range map[string]State{
		"0 of 5 used, 5 left": {Capacity: 5, Remaining: 5},
		"9 of 5 used, 0 left, the next one passes in 12.5s, reset in 20s":                                       {Used: 9, Capacity: 5, WaitSeconds: 12.5, Reset: 20},
		"0 of 0 used, 0 left, nothing ever passes, reset in 1m":                                                 {Never: true, Reset: 60},
		"5 of 5 used, 0 left, the next one passes in 1s, reset in 1s (remembered by the server's denial cache)": {Used: 5, Capacity: 5, WaitSeconds: 1, Reset: 1, Cached: true},
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	r := run(t, Options{}, "method=GET,path=/search")
	d := &r.Descriptors[0]
	d.StateOf = "localhost:6070"
	d.Limits[0].State = &State{Used: 10, Capacity: 10, WaitSeconds: 6, Reset: 60}
	var b strings.Builder
	if err := WriteText(&b, r, false); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "testdata/state.txt", b.String())
}

// A request that a server would reject cannot be explained.
func TestRequestsThatMakeNoSense(t *testing.T) {
	for _, o := range []Options{{Domain: "edge"}, {Descriptors: asked("a=b")}} {
		o.Tree, o.Now = rules(t), noon
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v was explained", o)
		}
	}
}

// The explanation names the same rule, keys and headers as a decision.
func TestReportAgreesWithDecisions(t *testing.T) {
	l := limiter.New(limiter.Options{Store: nowhere{}})
	l.Swap(rules(t), limiter.Settings{})
	for _, d := range []string{"method=GET,path=/search", "method=HEAD,path=/sales", "method=GET,path=/v2/users", "remote_address=10.1.2.3", "method=GET", "path=/"} {
		r, x := run(t, Options{}, d), l.Explain("edge", asked(d)[0].Entries)
		got := r.Descriptors[0]
		if got.Matched != (x.Rule != nil) || got.Matched && got.Rule.Path != x.Rule.Path {
			t.Errorf("%s: %+v, Explain finds %+v", d, got.Rule, x.Rule)
		}
		var keys []string
		for _, l := range got.Limits {
			keys = append(keys, l.Key)
		}
		if !slices.Equal(keys, x.Keys) {
			t.Errorf("%s: keys %q, Explain has %q", d, keys, x.Keys)
		}
	}
}

type nowhere struct{ backend.Store }
