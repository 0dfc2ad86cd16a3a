package operator

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

var hotSince = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

const hostile = "d|k=\x1b[31m\n\u202e\xff|f60"

// hotTracker has a rule whose key is denied, one in shadow mode with a hostile key, and limits that came with requests.
func hotTracker() *hotkeys.Tracker {
	t := hotkeys.New(hotSince, hotkeys.Options{})
	rules := t.Rules([]hotkeys.Name{{Domain: "d", Rule: "d.k"}, {Domain: "d", Rule: "d.shadow", Shadow: true}, {Domain: "e", Rule: "request_limit"}})
	rules[0].Count(0, []byte("d|k=a|f60"), 7, true)
	rules[0].Count(0, []byte("d|k=a|f60"), 3, false)
	rules[0].Count(0, []byte("d|k=b|f60"), 20, false)
	rules[1].Count(0, []byte(hostile), 2, true)
	rules[2].Count(0, []byte("e|x=y|f1"), 1, false)
	return t
}

func hotKeysOf(t *hotkeys.Tracker) func(hotkeys.Query) hotkeys.Report {
	return func(q hotkeys.Query) hotkeys.Report { return t.Top(hotSince.Add(9*time.Second), q) }
}

func TestHotKeysPage(t *testing.T) {
	r := start(t, Options{HotKeys: hotKeysOf(hotTracker())})
	code, header, body := request(t, http.MethodGet, r.DebugAddr, "/debug/hotkeys", nil)
	want := `Hits of the last 9 s, 12:00:00 to 2026-03-10T12:00:09Z. Used counts all hits, denied or not. 3-5 is a number from 3 to 5.

  most denied of all rules
    denied  used  key  (rule)
         7    10  d|k=a|f60  (d.k)
         2     2  d|k=\x1b[31m\n\u202e\xff|f60  (d.shadow, shadow mode)

  most used of all rules
    denied  used  key  (rule)
         0    20  d|k=b|f60  (d.k)
         7    10  d|k=a|f60  (d.k)
         2     2  d|k=\x1b[31m\n\u202e\xff|f60  (d.shadow, shadow mode)
         0     1  e|x=y|f1  (request_limit)

d.k: 30 hits used, 7 denied

  most denied of this rule
    denied  used  key
         7    10  d|k=a|f60

  most used of this rule
    denied  used  key
         0    20  d|k=b|f60
         7    10  d|k=a|f60

d.shadow: 2 hits used, 2 denied (shadow mode: let through)

  most denied of this rule
    denied  used  key
         2     2  d|k=\x1b[31m\n\u202e\xff|f60

  most used of this rule
    denied  used  key
         2     2  d|k=\x1b[31m\n\u202e\xff|f60

request_limit in e: 1 hits used, 0 denied

  most used of this rule
    denied  used  key
         0     1  e|x=y|f1
`
	if diff := cmp.Diff(want, body); diff != "" || code != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
		t.Errorf("%d %v (-want +got):\n%s", code, header, diff)
	}
	_, filtered := get(t, r.DebugAddr, "/debug/hotkeys?rule=d.k&by=used&n=1")
	want = `Hits of the last 9 s, 12:00:00 to 2026-03-10T12:00:09Z. Used counts all hits, denied or not. 3-5 is a number from 3 to 5.

d.k: 30 hits used, 7 denied

  most used of this rule
    denied  used  key
         0    20  d|k=b|f60
`
	if diff := cmp.Diff(want, filtered); diff != "" {
		t.Errorf("one rule (-want +got):\n%s", diff)
	}
	if _, none := get(t, r.DebugAddr, "/debug/hotkeys?domain=nobody"); !strings.Contains(none, "No counter was used.") {
		t.Errorf("an unknown domain: %s", none)
	}
	if _, index := get(t, r.DebugAddr, "/"); !strings.Contains(index, "/debug/hotkeys") {
		t.Errorf("the index does not name the page:\n%s", index)
	}
}

func TestHotKeysPageInJSON(t *testing.T) {
	r := start(t, Options{HotKeys: hotKeysOf(hotTracker())})
	code, header, body := request(t, http.MethodGet, r.DebugAddr, "/debug/hotkeys?format=json&by=denied&domain=d&n=1", nil)
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", code, header)
	}
	var got, want any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	a := `{"key": "d|k=a|f60", "cut": false, "domain": "d", "rule": "d.k", "shadow_mode": false,
		"used": {"at_least": 10, "at_most": 10}, "denied": {"at_least": 7, "at_most": 7}}`
	if err := json.Unmarshal([]byte(`{"from": "2026-03-10T12:00:00Z", "to": "2026-03-10T12:00:09Z", "most_denied": [`+a+`], "rules": [
		{"domain": "d", "rule": "d.k", "shadow_mode": false, "hits_used": 30, "hits_denied": 7, "hits_dropped": 0, "most_denied": [`+a+`]},
		{"domain": "d", "rule": "d.shadow", "shadow_mode": true, "hits_used": 2, "hits_denied": 2, "hits_dropped": 0, "most_denied": [
			{"key": "d|k=\\x1b[31m\\n\\u202e\\xff|f60", "cut": false, "domain": "d", "rule": "d.shadow", "shadow_mode": true,
			"used": {"at_least": 2, "at_most": 2}, "denied": {"at_least": 2, "at_most": 2}}]}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A client that asks for JSON in the way of HTTP gets it too.
	page, err := readHotKeysPage(nil, "application/json, text/plain")
	if err != nil || !page.json {
		t.Errorf("Accept: application/json gives %+v, %v", page, err)
	}
	if page, _ := readHotKeysPage(url.Values{"format": {"text"}}, "application/json"); page.json {
		t.Error("format=text gives JSON")
	}
}

func TestHotKeysPageDeniesWhatItDoesNotKnow(t *testing.T) {
	r := start(t, Options{HotKeys: hotKeysOf(hotTracker())})
	for query, want := range map[string]string{
		"by=hits": "use denied or used", "n=0": "1 to 256", "n=257": "1 to 256", "n=many": "1 to 256", "format=xml": "use text or json",
	} {
		if code, body := get(t, r.DebugAddr, "/debug/hotkeys?"+query); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want 400 with %q", query, code, body, want)
		}
	}
}

func TestAdminHotKeys(t *testing.T) {
	r := start(t, Options{HotKeys: hotKeysOf(hotTracker())})
	client := adminv1.NewAdminServiceClient(r.admin)
	got, err := client.HotKeys(within(t), &adminv1.HotKeysRequest{Domain: "d", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	exactly := func(n uint64) *adminv1.HitRange { return &adminv1.HitRange{AtLeast: n, AtMost: n} }
	a := &adminv1.HotKey{Key: "d|k=a|f60", CounterKey: []byte("d|k=a|f60"), Domain: "d", Rule: "d.k", Used: exactly(10), Denied: exactly(7)}
	b := &adminv1.HotKey{Key: "d|k=b|f60", CounterKey: []byte("d|k=b|f60"), Domain: "d", Rule: "d.k", Used: exactly(20), Denied: exactly(0)}
	c := &adminv1.HotKey{Key: `d|k=\x1b[31m\n\u202e\xff|f60`, CounterKey: []byte(hostile), Domain: "d", Rule: "d.shadow", ShadowMode: true, Used: exactly(2), Denied: exactly(2)}
	want := &adminv1.HotKeysResponse{
		From: timestamppb.New(hotSince), To: timestamppb.New(hotSince.Add(9 * time.Second)),
		MostDenied: []*adminv1.HotKey{a}, MostUsed: []*adminv1.HotKey{b},
		Rules: []*adminv1.HotRule{
			{Domain: "d", Rule: "d.k", HitsUsed: 30, HitsDenied: 7, MostDenied: []*adminv1.HotKey{a}, MostUsed: []*adminv1.HotKey{b}},
			{Domain: "d", Rule: "d.shadow", ShadowMode: true, HitsUsed: 2, HitsDenied: 2, MostDenied: []*adminv1.HotKey{c}, MostUsed: []*adminv1.HotKey{c}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := client.HotKeys(within(t), &adminv1.HotKeysRequest{Limit: 257}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("257 keys: %v", err)
	}
}
