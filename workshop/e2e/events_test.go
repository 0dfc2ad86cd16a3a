package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	cloudhttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// A receiver that uses the SDK of CloudEvents accepts all events.
func TestCloudEventsSDK(t *testing.T) {
	got := make(chan event.Event, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, err := cloudhttp.NewEventFromHTTPRequest(r)
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		} else {
			got <- *e
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	s := startService(t, "ratelimitd", rules(t, `
domain: d
descriptors:
  - key: k
    rate_limits:
      - {name: hard, unit: day, requests_per_unit: 5}
      - {name: soft, unit: day, requests_per_unit: 3, soft: true, warn_at: 50}
`), "RATELIMITD_EVENTS="+receiver.URL, "RATELIMITD_EVENTS_VALUES=true")
	client := ratelimitv3.NewRateLimitServiceClient(servicetest.Dial(t, s.GRPC))
	for range 7 {
		if _, err := client.ShouldRateLimit(servicetest.Within(t), servicetest.Ask("d", "k", "ann")); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"warning", "exceeded", "denial"} {
		select {
		case e := <-got:
			if err := e.Validate(); err != nil {
				t.Errorf("%s: %v", e, err)
			}
			var data struct{ Entries []struct{ Key, Value string } }
			if err := json.Unmarshal(e.Data(), &data); err != nil || len(data.Entries) != 1 || data.Entries[0].Value != "ann" {
				t.Errorf("data %s: %v", e.Data(), err)
			}
			if e.Type() != "io.github.ratelimitd."+want+".v1" || e.Source() != "/ratelimitd" || e.Subject() != "d.k" || e.SpecVersion() != event.CloudEventsVersionV1 {
				t.Errorf("got\n%s\nwant a %s", e, want)
			}
		case <-servicetest.Within(t).Done():
			t.Fatalf("no %s within %s", want, patience)
		}
	}
}
