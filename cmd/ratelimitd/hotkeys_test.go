package main

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// The admin port shows the denied customers, as a page and over gRPC.
func TestHotKeys(t *testing.T) {
	p := startProcess(t, map[string]string{"CACHE_KEY_PREFIX": "p:"}, "--rules", rulesOf(t, fiveADay))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	for range 8 {
		if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "loud")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "quiet")); err != nil {
		t.Fatal(err)
	}
	_, page := get(t, "http://"+p.Debug+"/debug/hotkeys")
	for _, want := range []string{"d.k: 9 hits used, 3 denied\n", " 3     8  p:d|k=loud|f86400\n", " 0     1  p:d|k=quiet|f86400\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
	admin := adminv1.NewAdminServiceClient(dial(t, p.Debug))
	got, err := admin.HotKeys(t.Context(), &adminv1.HotKeysRequest{Domain: "d"})
	if err != nil || len(got.GetMostDenied()) != 1 || string(got.GetMostDenied()[0].GetCounterKey()) != "p:d|k=loud|f86400" || got.GetMostDenied()[0].GetDenied().GetAtLeast() != 3 {
		t.Errorf("HotKeys: %v, %v", got, err)
	}
}
