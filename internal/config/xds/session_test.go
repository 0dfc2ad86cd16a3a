package xds

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// wire is the sending side of a stream. Sent messages arrive immediately.
type wire struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	sent chan *discoveryv3.DiscoveryRequest
}

func (w wire) Send(r *discoveryv3.DiscoveryRequest) error {
	w.sent <- r
	return nil
}

// follow runs a session on virtual time until responses is closed.
func follow(t *testing.T) (responses chan *discoveryv3.DiscoveryResponse, sent chan *discoveryv3.DiscoveryRequest) {
	t.Helper()
	c, err := New(Options{Server: "passthrough:///none", NodeID: nodeID, Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	responses, sent = make(chan *discoveryv3.DiscoveryResponse), make(chan *discoveryv3.DiscoveryRequest, 10)
	s := session{Client: c, calls: wire{sent: sent}, apply: func(config.Result) {}}
	go func() {
		if err := s.follow(responses); err != nil {
			t.Error(err)
		}
	}()
	<-sent // the first request
	return responses, sent
}

// If a server resends rejected rules immediately, ten minutes cost only a few dozen messages.
func TestNoLoopOfRejections(t *testing.T) {
	bad := response(t, "1", "n", &ratelimitv3.RateLimitConfig{Name: "bad"})
	synctest.Test(t, func(t *testing.T) {
		responses, sent := follow(t)
		defer close(responses)
		end := time.After(10 * time.Minute)
		responses <- bad
		for rejections, last := 0, time.Now(); ; {
			select {
			case r := <-sent:
				if r.GetErrorDetail() == nil {
					t.Fatalf("bad rules were acknowledged: %v", r)
				}
				if wait := time.Since(last); wait > 38*time.Second {
					t.Errorf("rejection %d came after %s: mended rules would have to wait as long", rejections, wait)
				}
				rejections, last = rejections+1, time.Now()
				responses <- bad
			case <-end:
				if rejections < 15 || rejections > 40 {
					t.Errorf("%d rejections in ten minutes", rejections)
				}
				return
			}
		}
	})
}

// A waiting rejection is dropped when newer rules arrive.
func TestARejectionThatWaitsIsForgotten(t *testing.T) {
	bad, good := response(t, "1", "n", &ratelimitv3.RateLimitConfig{Name: "bad"}), response(t, "2", "m", perDay("one", "a", "k", 5))
	synctest.Test(t, func(t *testing.T) {
		responses, sent := follow(t)
		defer close(responses)
		responses <- bad
		<-sent
		responses <- bad
		responses <- good
		if r := <-sent; r.GetErrorDetail() != nil || r.GetVersionInfo() != "2" {
			t.Errorf("good rules are answered with %v", r)
		}
		select {
		case r := <-sent:
			t.Errorf("a forgotten rejection was sent: %v", r)
		case <-time.After(time.Hour):
		}
	})
}
