package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitdescriptor "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/authoring/conform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// recordedSettings are the module's settings for variables of envoyproxy/ratelimit. The names of headers have no such
// setting.
var recordedSettings = map[string]string{
	"LIMIT_RESPONSE_HEADERS_ENABLED":          "response_headers: [ratelimit]",
	"LOCAL_CACHE_SIZE_IN_BYTES":               "local_cache_size_in_bytes: 1048576",
	"QUOTA_MODE":                              "quota_mode: true",
	"RESPONSE_DYNAMIC_METADATA":               "response_dynamic_metadata: true",
	"SHADOW_MODE":                             "shadow_mode: true",
	"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "stop_cache_key_increment_when_overlimit: true",
	"LIMIT_LIMIT_HEADER":                      "",
	"LIMIT_REMAINING_HEADER":                  "",
	"LIMIT_RESET_HEADER":                      "",
}

// recordedOn are the recordings of one setup, for a listener with this setup on one store.
type recordedOn struct {
	listener, settings string
	redis              bool
	cases              []*recording
}

// recording is a recorded case. It has a route for each domain of its requests. The items of rate_limits of a route
// make the descriptors: each item makes one descriptor of a request that has the item's headers, and none of other
// requests.
type recording struct {
	name, rules string
	domains     []string
	// items by the position of a descriptor in its request; NAME stands for the name of the item's headers
	items     [][]string
	exchanges []exchange
}

// exchange is a recorded request, as a client of Envoy sends it, and the answer.
type exchange struct {
	step    *conform.Step
	path    string
	headers []string // name and value pairs
	want    *ratelimitv3.RateLimitResponse
}

// The module answers like envoyproxy/ratelimit did: the status, the headers with the limits and the remaining hits, and
// the metadata, which shows the descriptors too. Nobody can stop Envoy's clock, so a case in which a minute ended
// is repeated: the recordings have no shorter window.
func TestModuleDecidesAsRecorded(t *testing.T) {
	needsModule(t)
	setups, err := conform.Setups()
	if err != nil {
		t.Fatal(err)
	}
	var all []*recordedOn
	left := make(map[string]int)
	for i := range setups {
		memory := readRecorded(t, &setups[i], left)
		all = append(all, memory)
		if !strings.Contains(memory.settings, "local_cache") { // a replica forgets denials when it connects to Redis
			all = append(all, &recordedOn{listener: "redis-" + setups[i].Name, settings: memory.settings, redis: true, cases: memory.cases})
		}
	}
	compared := 0
	for range 5 {
		all = replayRecorded(t, all, &compared)
	}
	if len(all) > 0 {
		t.Error("minutes ended in all tries")
	}
	t.Logf("%d answers agree; these are left out on each store: %v", compared, left)
	if compared < 7000 {
		t.Errorf("only %d answers were compared", compared)
	}
}

// readRecorded translates the recordings of a setup into HTTP requests. It counts the steps that it leaves out in left,
// by reason.
func readRecorded(t *testing.T, s *conform.Setup, left map[string]int) *recordedOn {
	t.Helper()
	on := &recordedOn{listener: "memory-" + s.Name}
	for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
		setting, known := recordedSettings[name]
		if !known {
			t.Fatalf("%s: the module has no setting for %s", s.Name, name)
		}
		on.settings += setting + "\n"
	}
	for i := range s.Cases {
		c := &s.Cases[i]
		if c.Level != conform.Recorded {
			continue
		}
		r := &recording{name: c.Name, rules: c.Rules}
		for j := range c.Steps {
			step := &c.Steps[j]
			if step.Error != "" { // the step counted nothing
				left["envoyproxy/ratelimit gave an error, for requests that a filter does not send"]++
				continue
			}
			if step.Differs == "answer" {
				left["envoyproxy/ratelimit was wrong"]++
			}
			if err := r.add(step); err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
		}
		on.cases = append(on.cases, r)
	}
	return on
}

func (r *recording) add(step *conform.Step) error {
	request, err := step.Message()
	if err != nil {
		return err
	}
	x := exchange{step: step, path: r.path(request.GetDomain()), want: new(ratelimitv3.RateLimitResponse)}
	if err := protojson.Unmarshal(step.Response, x.want); err != nil {
		return err
	}
	if !slices.Contains(r.domains, request.GetDomain()) {
		r.domains = append(r.domains, request.GetDomain())
	}
	if n := request.GetHitsAddend(); n > 0 { // a filter sends hits with each descriptor
		hitsOfDescriptors(x.want, n)
		for _, d := range request.GetDescriptors() {
			if d.GetHitsAddend() == nil {
				d.HitsAddend = wrapperspb.UInt64(uint64(n))
			}
		}
	}
	for at, d := range request.GetDescriptors() {
		name := r.item(at, d)
		for i, e := range d.GetEntries() {
			x.headers = append(x.headers, fmt.Sprint(name, "-", i), e.GetValue())
		}
		if n := d.GetHitsAddend(); n != nil {
			x.headers = append(x.headers, name+"-hits", fmt.Sprint(n.GetValue()))
		}
	}
	r.exchanges = append(r.exchanges, x)
	return nil
}

// hitsOfDescriptors moves the hits of the request, which metadata shows, to the descriptors.
func hitsOfDescriptors(answer *ratelimitv3.RateLimitResponse, hits uint32) {
	fields := answer.GetDynamicMetadata().GetFields()
	delete(fields, "hitsAddend")
	for _, d := range fields["descriptors"].GetListValue().GetValues() {
		if one := d.GetStructValue().GetFields(); one["hitsAddend"] == nil {
			one["hitsAddend"] = structpb.NewNumberValue(float64(hits))
		}
	}
}

// item returns the name of the headers of which an item makes this descriptor.
func (r *recording) item(at int, d *ratelimitdescriptor.RateLimitDescriptor) string {
	var actions []string
	for i, e := range d.GetEntries() {
		actions = append(actions, fmt.Sprintf("{request_headers: {header_name: NAME-%d, descriptor_key: %s}}", i, e.GetKey()))
	}
	item := "actions: [" + strings.Join(actions, ", ") + "]"
	if d.GetHitsAddend() != nil {
		item += `, hits_addend: {format: "%REQ(NAME-hits)%"}`
	}
	if l := d.GetLimit(); l != nil {
		item += fmt.Sprintf(", limit: {rate_limit: {requests_per_unit: %d, unit: %s}}", l.GetRequestsPerUnit(), l.GetUnit())
	}
	if at == len(r.items) {
		r.items = append(r.items, nil)
	}
	i := slices.Index(r.items[at], item)
	if i < 0 {
		i = len(r.items[at])
		r.items[at] = append(r.items[at], item)
	}
	return itemName(at, i)
}

func itemName(at, i int) string { return fmt.Sprintf("x-%d-%d", at, i) }

// routes are the routes of the recording.
func (r *recording) routes() (all string) {
	var items []string
	for at, same := range r.items {
		for i, item := range same {
			items = append(items, "- {"+strings.ReplaceAll(item, "NAME", itemName(at, i))+"}")
		}
	}
	for _, domain := range r.domains {
		all += perModuleRoute(r.path(domain), strings.Join(items, "\n")+"\ndomain: "+domain)
	}
	return all
}

func (r *recording) path(domain string) string { return "/" + r.name + "/" + domain + "/" }

// replayRecorded sends all requests to a new Envoy, and returns the cases in which a minute ended.
func replayRecorded(t *testing.T, all []*recordedOn, compared *int) (again []*recordedOn) {
	t.Helper()
	if len(all) == 0 {
		return nil
	}
	redis := redistest.Start(t)
	b := bootstrap{Clusters: []cluster{upstreamCluster(startUpstream(t))}, Env: needsModule(t)}
	for _, on := range all {
		l := listener{
			Name:        on.listener,
			VirtualHost: `response_headers_to_add: [{header: {key: x-metadata, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%"}}]`,
		}
		var files []string
		for _, r := range on.cases {
			l.Routes += r.routes()
			files = append(files, r.rules)
		}
		l.Module = on.settings + "domain: none\nrules: " + rules(t, files...) +
			"\ntimeout: 60s\nfailure_mode_deny: true\nenable_x_ratelimit_headers: DRAFT_VERSION_03"
		if on.redis {
			l.Module += "\nredis_op_timeout: 30s\nredis_url: " + redis.Addr
		}
		b.Listeners = append(b.Listeners, l)
	}
	e := startEnvoy(t, b)
	for _, on := range all {
		repeat := *on
		repeat.cases = nil
		for _, r := range on.cases {
			began := time.Now()
			n, differences := e.replay(t, on.listener, r)
			if !began.Truncate(time.Minute).Equal(time.Now().Truncate(time.Minute)) {
				repeat.cases = append(repeat.cases, r)
				continue
			}
			*compared += n
			if len(differences) > 0 {
				t.Errorf("%s: %d of %d answers differ, the first of them:\n%s", on.listener, len(differences), n, differences[0])
			}
		}
		if len(repeat.cases) > 0 {
			again = append(again, &repeat)
		}
	}
	return again
}

func (e *envoy) replay(t *testing.T, listener string, r *recording) (compared int, differences []string) {
	t.Helper()
	for i := range r.exchanges {
		x := &r.exchanges[i]
		from := time.Now()
		got := e.get(t, listener, x.path, x.headers...)
		if x.step.Differs == "answer" {
			continue
		}
		compared++
		if difference := x.difference(got, from, time.Now()); difference != "" {
			differences = append(differences, fmt.Sprintf("%s\nwant %s\n got %d %v\n%s",
				compact(x.step.Request), compact(x.step.Response), got.code, got.header, difference))
		}
	}
	return compared, differences
}

func compact(text json.RawMessage) string {
	var line bytes.Buffer
	_ = json.Compact(&line, text) // it has been read
	return line.String()
}

// difference returns how an answer, which was given between from and to, differs from the recorded one.
func (x *exchange) difference(got response, from, to time.Time) string {
	want := http.Header{}
	code := http.StatusOK
	if x.want.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		code = http.StatusTooManyRequests
		want.Set("x-envoy-ratelimited", "true")
	}
	if got.code != code {
		return fmt.Sprintf("the status is %d, not %d", got.code, code)
	}
	tightest := x.expectLimits(want)
	names := []string{"x-envoy-ratelimited", "x-ratelimit-limit", "x-ratelimit-remaining"}
	if x.step.Differs != "headers" {
		names = append(names, "ratelimit-limit", "ratelimit-remaining")
		for _, h := range x.want.GetResponseHeadersToAdd() {
			want.Set(strings.TrimPrefix(h.GetKey(), "X-"), h.GetValue()) // X-: a setup that renames them
		}
	}
	for _, name := range names {
		if !slices.Equal(got.header.Values(name), want.Values(name)) {
			return fmt.Sprintf("%s is %q, not %q", name, got.header.Values(name), want.Values(name))
		}
	}
	if tightest != nil && !resets(tightest, got.header.Get("x-ratelimit-reset"), from, to) {
		return fmt.Sprintf("x-ratelimit-reset is not the end of the window of %v", tightest.GetCurrentLimit())
	}
	if at := got.header.Get("ratelimit-reset"); at != "" && !slices.ContainsFunc(x.want.GetStatuses(),
		func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) bool { return resets(s, at, from, to) }) {
		return "ratelimit-reset is not the end of a window"
	}
	var metadata map[string]any
	if text := got.header.Get("x-metadata"); text != "" {
		if err := json.Unmarshal([]byte(text), &metadata); err != nil {
			return fmt.Sprintf("the metadata is %s: %v", text, err)
		}
	}
	if expected := x.want.GetDynamicMetadata().AsMap(); len(expected)+len(metadata) > 0 && !reflect.DeepEqual(metadata, expected) {
		return fmt.Sprintf("the metadata is %v, not %v", metadata, expected)
	}
	return ""
}

// expectLimits sets the headers that Envoy's filter derives from an answer: the limit with the fewest remaining hits,
// and all limits with their windows.
func (x *exchange) expectLimits(headers http.Header) (tightest *ratelimitv3.RateLimitResponse_DescriptorStatus) {
	windows := ""
	for _, s := range x.want.GetStatuses() {
		l := s.GetCurrentLimit()
		if l == nil {
			continue
		}
		if tightest == nil || s.GetLimitRemaining() < tightest.GetLimitRemaining() {
			tightest = s
		}
		windows += fmt.Sprintf(", %d;w=%d", l.GetRequestsPerUnit(), windowOf(s).Length()/time.Second)
		if l.GetName() != "" {
			windows += fmt.Sprintf(";name=%q", l.GetName())
		}
	}
	if tightest != nil {
		headers.Set("x-ratelimit-limit", fmt.Sprint(tightest.GetCurrentLimit().GetRequestsPerUnit(), windows))
		headers.Set("x-ratelimit-remaining", fmt.Sprint(tightest.GetLimitRemaining()))
	}
	return tightest
}

func windowOf(s *ratelimitv3.RateLimitResponse_DescriptorStatus) descriptor.Window {
	return descriptor.Window{Unit: descriptor.Unit(s.GetCurrentLimit().GetUnit())}
}

// resets reports whether a number of seconds from now is the end of the status' window.
func resets(s *ratelimitv3.RateLimitResponse_DescriptorStatus, seconds string, from, to time.Time) bool {
	n, err := strconv.Atoi(seconds)
	if err != nil || s.GetCurrentLimit() == nil {
		return false
	}
	_, micros := windowOf(s).Bounds(from.UnixMicro())
	end, left := time.UnixMicro(micros), time.Duration(n)*time.Second
	return !from.Add(left).After(end.Add(time.Second)) && !to.Add(left).Before(end.Add(-time.Second))
}
