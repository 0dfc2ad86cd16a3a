package xds

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// newest sets fields of a descriptor that the published Go code does not have, in wire format.
func newest(t testing.TB, d *ratelimitv3.RateLimitDescriptor, quota bool, metadata map[string]any) *ratelimitv3.RateLimitDescriptor {
	t.Helper()
	b := protowire.AppendVarint(protowire.AppendTag(nil, quotaModeField, protowire.VarintType), protowire.EncodeBool(quota))
	if metadata != nil {
		s, err := structpb.NewStruct(metadata)
		if err != nil {
			t.Fatal(err)
		}
		text, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, metadataField, protowire.BytesType), text)
	}
	d.ProtoReflect().SetUnknown(b)
	return d
}

// compile applies resources as they arrive over the wire.
func compile(t testing.TB, all ...*ratelimitv3.RateLimitConfig) (*descriptor.Tree, error) {
	t.Helper()
	var set []*anypb.Any
	for _, x := range all {
		packed, err := anypb.New(x)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, packed)
	}
	result, err := config.NewResources(config.ResourceOptions{Logger: discard}).Apply(resources(set))
	return result.Tree, err
}

// ofDescriptor is a resource with one descriptor.
func ofDescriptor(d ...*ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "r", Domain: "a", Descriptors: d}
}

// fromYAML makes a resource with the content of a rule file. It uses the protocol's fields where they exist, and the
// extensions for everything else.
func fromYAML(t testing.TB, domain map[string]any) *ratelimitv3.RateLimitConfig {
	t.Helper()
	c := &ratelimitv3.RateLimitConfig{Name: "r", Domain: domain["domain"].(string)}
	list, _ := domain["descriptors"].([]any)
	take(domain, "name", &c.Name)
	delete(domain, "domain")
	delete(domain, "descriptors")
	for i, d := range list {
		m := d.(map[string]any)
		if i == 0 && len(domain) > 0 {
			m["domain"] = domain
		}
		c.Descriptors = append(c.Descriptors, descriptorOf(t, m))
	}
	return c
}

func take[T any](m map[string]any, key string, into *T) {
	if v, is := m[key].(T); is {
		*into = v
		delete(m, key)
	}
}

func descriptorOf(t testing.TB, m map[string]any) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	quota := false
	var metadata map[string]any
	take(m, "key", &d.Key)
	take(m, "value", &d.Value)
	take(m, "shadow_mode", &d.ShadowMode)
	take(m, "detailed_metric", &d.DetailedMetric)
	take(m, "quota_mode", &quota)
	take(m, "metadata", &metadata)
	list, _ := m["descriptors"].([]any)
	delete(m, "descriptors")
	for _, child := range list {
		d.Descriptors = append(d.Descriptors, descriptorOf(t, child.(map[string]any)))
	}
	if limit, is := m["rate_limit"].(map[string]any); is {
		d.RateLimit = &ratelimitv3.RateLimitPolicy{}
		var unit string
		var requests int
		if text, is := limit["unit"].(string); is && descriptor.ParseUnit(text).OnWire() {
			take(limit, "unit", &unit)
		}
		if n, is := limit["requests_per_unit"].(int); is && n <= math.MaxUint32 {
			take(limit, "requests_per_unit", &requests)
		}
		take(limit, "unlimited", &d.RateLimit.Unlimited)
		take(limit, "name", &d.RateLimit.Name)
		d.RateLimit.Unit = ratelimitv3.RateLimitUnit(descriptor.ParseUnit(unit))
		d.RateLimit.RequestsPerUnit = uint32(requests)
		replaces, _ := limit["replaces"].([]any)
		delete(limit, "replaces")
		for _, r := range replaces {
			d.RateLimit.Replaces = append(d.RateLimit.Replaces, &ratelimitv3.RateLimitReplace{Name: r.(map[string]any)["name"].(string)})
		}
		if len(limit) == 0 {
			delete(m, "rate_limit")
		}
	}
	if len(m) > 0 {
		if metadata == nil {
			metadata = map[string]any{}
		}
		metadata[extensions] = m
	}
	return newest(t, d, quota, metadata)
}

// A rule over xDS equals the rule of a file with the same content.
func TestTheSameRulesAsFiles(t *testing.T) {
	var files []config.File
	for _, page := range []string{"rules", "plans", "weights"} {
		docs, err := os.ReadFile("../../../docs/do/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(docs), "\n```yaml\n")[1:] {
			example, _, _ := strings.Cut(block, "\n```\n")
			if !strings.Contains(example, "domain: ") {
				continue // only a part of a rule file
			}
			files = append(files, config.File{Name: fmt.Sprintf("%s, example %d", page, i+1), Data: []byte(example)})
		}
	}
	paths, err := filepath.Glob("../../../config/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.yaml") {
			continue // tests of rules
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, config.File{Name: filepath.Base(path), Data: data})
	}
	files = append(files, config.File{Name: "flags", Data: []byte(`
domain: flags
headers: []
descriptors:
  - {key: a, value: "x*", share_threshold: true, value_to_metric: true, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 1, name: n, replaces: [{name: m}]}}
  - {key: b, quota_mode: true, detailed_metric: true, metadata: {text: t, number: 1.5, whole: 7, none: null, list: [1, {deep: true}]}, rate_limit: {unit: month, requests_per_unit: 4294967295}}
  - {key: c, rate_limit: {unlimited: true}}
  - {key: large, rate_limit: {unit: month, requests_per_unit: 5000000000}}
  - {key: short, rate_limit: {unit: millisecond, unit_multiplier: 50, requests_per_unit: 2}}
  - {key: d, rate_limit: {unit: year}, descriptors: [{key: e, value: f, rate_limit: {unit: hour, requests_per_unit: 2, unit_multiplier: 3}}]}
`)})
	if len(files) < 10 {
		t.Fatalf("only %d rule files", len(files))
	}
	sameZone := cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() })
	rules := 0
	for _, f := range files {
		want, errs := config.Compile([]config.File{f}, config.CompileOptions{})
		if len(errs) > 0 {
			t.Fatal(errs[0])
		}
		var all []*ratelimitv3.RateLimitConfig
		domains, err := yamlform.Decode(f.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, domain := range domains {
			all = append(all, fromYAML(t, domain.(map[string]any)))
		}
		got, err := compile(t, all...)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		if diff := cmp.Diff(sorted(want), sorted(got), cmp.AllowUnexported(descriptor.Rule{}), sameZone,
			cmpopts.IgnoreTypes(descriptor.Position{}), cmpopts.IgnoreFields(descriptor.Rule{}, "Index", "shared")); diff != "" {
			t.Errorf("%s (-file +xDS):\n%s", f.Name, diff)
		}
		if want.Checksum != got.Checksum { // the checksum shows differences in groups too
			t.Errorf("%s: the rules mean something else over xDS", f.Name)
		}
		for _, r := range want.Rules {
			a, b := want.Domain(r.Domain), got.Domain(r.Domain)
			if a.Admission != b.Admission || a.OnError != b.OnError || !cmp.Equal(a.Headers, b.Headers) {
				t.Errorf("%s: domain %s says something else", f.Name, r.Domain)
			}
		}
		rules += len(got.Rules)
	}
	if rules < 30 {
		t.Errorf("only %d rules were compared", rules)
	}
}

func sorted(tree *descriptor.Tree) map[string]*descriptor.Rule {
	all := make(map[string]*descriptor.Rule)
	for _, r := range tree.Rules {
		all[fmt.Sprint(r.Path, r.Levels)] = r
	}
	return all
}

// The unit numbers come from the newest protocol. The published Go code lacks them.
func TestUnits(t *testing.T) {
	for number, want := range map[int32]descriptor.Unit{1: descriptor.Second, 2: descriptor.Minute, 3: descriptor.Hour, 4: descriptor.Day, 5: descriptor.Month, 6: descriptor.Year, 7: descriptor.Week} {
		tree, err := compile(t, ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit(number), RequestsPerUnit: 1}}))
		if err != nil || tree.Rules[0].Limits[0].Window.Unit != want {
			t.Errorf("unit %d: %v, want %s", number, err, want)
		}
	}
}

// The documented example is a valid resource and has the documented result.
func TestDocumentedExample(t *testing.T) {
	racetest.Sequential(t)
	docs, err := os.ReadFile("../../../docs/do/xds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(docs), "\n```yaml\n")
	example, _, _ := strings.Cut(block, "\n```\n")
	domains, err := yamlform.Decode([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := compile(t, fromYAML(t, domains[0].(map[string]any)))
	if err != nil {
		t.Fatal(err)
	}
	user, tenant, shop := tree.Rules[0], tree.Rules[1], tree.Domain("shop")
	if l := user.Limits[0]; l.Algorithm != descriptor.TokenBucket || l.Burst != 20 || l.Window.Length() != 5*time.Minute || l.Requests != 60 ||
		user.OnError != descriptor.OnErrorLocal || !cmp.Equal(user.Metadata, map[string]any{"team": "checkout"}) {
		t.Errorf("%+v", user)
	}
	if len(tenant.Limits) != 2 || tenant.Levels[0].Kind != descriptor.MatchValues || len(tenant.Metadata) > 0 {
		t.Errorf("%+v", tenant)
	}
	if descriptor.AdmissionNames[shop.Admission] != "all_or_nothing" || shop.Headers.String() != `[ietf, {name: X-Used, value: "{used}"}]` {
		t.Errorf("%+v", shop)
	}
}

// The position of a rule is the resource's name and a path.
func TestPositions(t *testing.T) {
	d := &ratelimitv3.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimitv3.RateLimitDescriptor{perDay("", "", "i", 1).GetDescriptors()[0], perDay("", "", "j", 1).GetDescriptors()[0]}}
	tree, err := compile(t, ofDescriptor(perDay("", "", "h", 1).GetDescriptors()[0], d))
	if err != nil {
		t.Fatal(err)
	}
	if got := tree.Rules[2].Position; got != (descriptor.Position{File: "r: descriptors[1].descriptors[1]"}) {
		t.Errorf("%+v", got)
	}
}

// Errors read as for files, with the resource and the path instead of file and line.
func TestWhatIsWrong(t *testing.T) {
	limit := &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_DAY, RequestsPerUnit: 1}
	plain := func() *ratelimitv3.RateLimitDescriptor {
		return &ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: limit}
	}
	extended := func(more map[string]any) *ratelimitv3.RateLimitDescriptor {
		return newest(t, plain(), false, map[string]any{extensions: more})
	}
	deep := plain()
	for range 40 {
		deep = &ratelimitv3.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimitv3.RateLimitDescriptor{deep}}
	}
	broken := plain()
	broken.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, metadataField, protowire.BytesType), []byte{0xff}))
	for name, c := range map[string]struct {
		resource *ratelimitv3.RateLimitConfig
		want     string
	}{
		"nothing":             {&ratelimitv3.RateLimitConfig{}, "resource 1: domain: `domain` is empty"},
		"no domain":           {&ratelimitv3.RateLimitConfig{Name: "r"}, "r: domain: `domain` is empty"},
		"no key":              {ofDescriptor(&ratelimitv3.RateLimitDescriptor{RateLimit: limit}), "r: descriptors[0]: a descriptor without a `key`"},
		"no unit":             {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{RequestsPerUnit: 1}}), "r: descriptors[0].rate_limit: `rate_limit` without a `unit`"},
		"a negative unit":     {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: -1}}), `r: descriptors[0].rate_limit.unit: unknown unit "-1"`},
		"a large unit":        {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 257}}), `r: descriptors[0].rate_limit.unit: unknown unit "257"`},
		"unlimited":           {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 1, Unlimited: true}}), "r: descriptors[0].rate_limit.unit: `unlimited: true` and a `unit`"},
		"twice":               {ofDescriptor(plain(), plain()), `r: descriptors[1]: duplicate descriptor: key "k" without a value is already defined at r: descriptors[0]`},
		"replaces itself":     {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 1, Name: "n", Replaces: []*ratelimitv3.RateLimitReplace{{Name: "n"}}}}), `r: descriptors[0].rate_limit.replaces[0].name: the rate limit "n" replaces itself`},
		"replaces nothing":    {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "k", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: 1, Replaces: []*ratelimitv3.RateLimitReplace{{}}}}), "r: descriptors[0].rate_limit.replaces[0].name: an entry of `replaces` without a name"},
		"too deep":            {ofDescriptor(deep), "more than 32 levels"},
		"an unknown key":      {ofDescriptor(extended(map[string]any{"value_rgex": "x"})), "r: descriptors[0].metadata.ratelimitd.value_rgex: unknown key `value_rgex`: did you mean `value_regex`?"},
		"a fraction":          {ofDescriptor(extended(map[string]any{"rate_limit": map[string]any{"unit_multiplier": 1.5}})), "r: descriptors[0].metadata.ratelimitd.rate_limit.unit_multiplier: `unit_multiplier` must be a whole number"},
		"said twice":          {ofDescriptor(extended(map[string]any{"rate_limit": map[string]any{"unit": "hour"}})), "r: descriptors[0].metadata.ratelimitd.rate_limit.unit: key `unit` twice in one map: the first is at r: descriptors[0].rate_limit.unit"},
		"both kinds":          {ofDescriptor(extended(map[string]any{"rate_limits": []any{map[string]any{"name": "n", "unit": "day"}}})), "`rate_limit` and `rate_limits`"},
		"no map":              {ofDescriptor(newest(t, plain(), false, map[string]any{extensions: "x"})), "r: descriptors[0].metadata.ratelimitd: must be a map"},
		"domains disagree":    {ofDescriptor(extended(map[string]any{"domain": map[string]any{"on_error": "deny"}}), newest(t, &ratelimitv3.RateLimitDescriptor{Key: "j"}, false, map[string]any{extensions: map[string]any{"domain": map[string]any{"on_error": "allow"}}})), "r: descriptors[1].metadata.ratelimitd.domain.on_error: key `on_error` twice in one map: the first is at r: descriptors[0].metadata.ratelimitd.domain.on_error"},
		"a domain further in": {ofDescriptor(&ratelimitv3.RateLimitDescriptor{Key: "j", Descriptors: []*ratelimitv3.RateLimitDescriptor{extended(map[string]any{"domain": map[string]any{"on_error": "deny"}})}}), "r: descriptors[0].descriptors[0].metadata.ratelimitd.domain: `domain` does not belong in a descriptor"},
		"broken metadata":     {ofDescriptor(broken), "r: descriptors[0]: `metadata` cannot be decoded"},
	} {
		if _, err := compile(t, c.resource); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// A small message with many levels must not become paths of its size squared.
func TestDeepResourceIsSmall(t *testing.T) {
	deep := &ratelimitv3.RateLimitDescriptor{Key: "k"}
	for range 9_000 {
		deep = &ratelimitv3.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimitv3.RateLimitDescriptor{deep}}
	}
	resource := ofDescriptor(deep)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := compile(t, resource)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "more than 32 levels") {
		t.Error(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("%d bytes were allocated for a message of %d", used, proto.Size(resource))
	}
}

// A resource without a name gets its domain's name. A name that occurs twice gets a number.
func TestNames(t *testing.T) {
	set := config.NewResources(config.ResourceOptions{Logger: discard})
	var all []*anypb.Any
	for _, x := range []*ratelimitv3.RateLimitConfig{{Domain: "b"}, {Name: "x", Domain: "c"}, {Name: "x", Domain: "d"}} {
		packed, err := anypb.New(x)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, packed)
	}
	if _, err := set.Apply(resources(all)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range set.Files() {
		names = append(names, f.Name)
	}
	if diff := cmp.Diff([]string{"b", "x", "x#2"}, names); diff != "" {
		t.Error(diff)
	}
}

// The order of a set does not matter: servers take it from a map.
func TestTheIdentityOfASet(t *testing.T) {
	a, b := &anypb.Any{TypeUrl: "t", Value: []byte("a")}, &anypb.Any{TypeUrl: "t", Value: []byte("b")}
	if sumOf([]*anypb.Any{a, b}) != sumOf([]*anypb.Any{b, a}) {
		t.Error("another order is another set")
	}
	for _, other := range [][]*anypb.Any{nil, {a}, {a, a}, {a, b, b}, {a, {TypeUrl: "tb"}}, {a, {TypeUrl: "", Value: []byte("tb")}}} {
		if sumOf(other) == sumOf([]*anypb.Any{a, b}) {
			t.Errorf("%v is the same set", other)
		}
	}
}

// FuzzResource checks that no bytes panic, that an error names its resource, and that accepted rules can be matched.
func FuzzResource(f *testing.F) {
	for _, x := range []*ratelimitv3.RateLimitConfig{
		perDay("one", "a", "k", 5),
		{Descriptors: []*ratelimitv3.RateLimitDescriptor{{Key: "k", Value: "v*"}}},
		ofDescriptor(newest(f, perDay("", "", "k", 1).GetDescriptors()[0], true, map[string]any{"a": 1.5, extensions: map[string]any{
			"values": []any{"a", 1}, "share_threshold": true, "on_error": "deny", "domain": map[string]any{"admission": "all_or_nothing"},
			"rate_limit": map[string]any{"algorithm": "token_bucket", "burst": 5},
		}})),
		ofDescriptor(newest(f, &ratelimitv3.RateLimitDescriptor{Key: "k"}, true, map[string]any{extensions: map[string]any{
			"rate_limits": []any{map[string]any{"name": "n", "unit": "day", "calendar": "Asia/Seoul"}}, "value_cidr": "10.0.0.0/8", "": nil,
		}})),
	} {
		b, err := proto.Marshal(x)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x := resource(&anypb.Any{TypeUrl: typeURL, Value: data})
		set := config.NewResources(config.ResourceOptions{Logger: discard})
		result, err := set.Apply([]config.Resource{x})
		files := set.Files()
		if len(files) != 1 || files[0].Name != x.Name {
			t.Fatalf("the state of %q: %+v", x.Name, files)
		}
		if err != nil {
			if result.Tree != nil || len(files[0].Errors) == 0 || files[0].State != descriptor.FileRejected {
				t.Fatalf("rejected with %v: %+v", err, files[0])
			}
			for _, e := range files[0].Errors {
				if !strings.HasPrefix(e, x.Name+": ") {
					t.Fatalf("no resource in %q", e)
				}
			}
			return
		}
		for _, r := range result.Tree.Rules {
			if !strings.HasPrefix(r.Position.File, x.Name+": descriptors[") {
				t.Fatalf("rule %s at %+v", r.Path, r.Position)
			}
			entries := make([]descriptor.Entry, len(r.Levels))
			for i, l := range r.Levels {
				entries[i] = descriptor.Entry{Key: l.Key, Value: l.Value}
			}
			result.Tree.Domain(r.Domain).Match(entries)
		}
	})
}

// Every descriptor of the first level may have keys of the domain. The cost grows with their number, not with its
// square, even if no two of them agree.
func TestManyDomainKeysThatDisagree(t *testing.T) {
	cost := func(value func(i int) string) (shortest time.Duration, err error) {
		all := make([]*ratelimitv3.RateLimitDescriptor, 8000)
		for i := range all {
			domain := map[string]any{"on_error": value(i)}
			all[i] = newest(t, &ratelimitv3.RateLimitDescriptor{Key: fmt.Sprint("k", i)}, false, map[string]any{extensions: map[string]any{"domain": domain}})
		}
		shortest = time.Hour
		for range 3 {
			began := time.Now()
			_, err = compile(t, ofDescriptor(all...))
			shortest = min(shortest, time.Since(began))
		}
		return shortest, err
	}
	agreeing, err := cost(func(int) string { return "deny" })
	if err != nil {
		t.Error(err)
	}
	disagreeing, err := cost(func(i int) string { return fmt.Sprint("value ", i) })
	if want := "key `on_error` twice in one map"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if disagreeing > 6*agreeing { // about the same; 10 times if it grows with the square
		t.Errorf("descriptors that agree cost %s, and %s if they do not", agreeing, disagreeing)
	}
}
