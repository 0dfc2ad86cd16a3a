package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// An open loop sends at its rate, whether the server keeps up or not. Lateness counts from the moment at which a
// request was due.
func TestPacedLoad(t *testing.T) {
	const rate, second = 400, time.Second
	address, _ := serve(t, allow)
	l := dialed(t, address, newPayload(1, 1))
	for range 2 { // a connection can be used again
		r, err := l.runAt(t.Context(), rate, second)
		if err != nil {
			t.Fatal(err)
		}
		if r.answered < rate*3/4 || r.answered > rate*5/4 || r.latency.TotalCount() != r.answered {
			t.Errorf("%d calls in a second, want about %d", r.answered, rate)
		}
	}

	// A server that stops for a while delays all calls that are due during the stop.
	const pause = 500 * time.Millisecond
	var calls atomic.Int64
	address, _ = serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		if n := calls.Add(1); n > 20 && n <= 20+rate {
			<-time.After(pause)
		}
		return allow(r)
	})
	r, err := dialed(t, address, newPayload(1, 1)).runAt(t.Context(), rate, second)
	if err != nil {
		t.Fatal(err)
	}
	if p50 := time.Duration(r.latency.ValueAtQuantile(50)) * time.Microsecond; p50 < pause {
		t.Errorf("half of the calls took less than %v, though most had to wait for %v", p50, pause)
	}
	if r.answered < rate*3/4 {
		t.Errorf("only %d calls were sent while the server was slow", r.answered)
	}
}

func TestPacedLoadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address, _ := serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		cancel()
		return allow(r)
	})
	if _, err := dialed(t, address, newPayload(1, 1)).runAt(ctx, 100, 20*time.Second); err == nil {
		t.Error("a run whose context has ended has no error")
	}
}

func TestPace(t *testing.T) {
	all, err := choose(allTargets(), "a,c")
	if err != nil {
		t.Fatal(err)
	}
	all[1].rounds = []measurement{round(50_000, 2, 1)} // 50,000 answers in 2 s
	for _, c := range []struct {
		o    options
		want float64
	}{{options{}, 0}, {options{rate: 7}, 7}, {options{half: all[1].id}, 12_500}} {
		if got, err := c.o.pace(all); got != c.want || err != nil {
			t.Errorf("%+v: %v, %v, want %v", c.o, got, err, c.want)
		}
	}
	if _, err := (&options{half: "z"}).pace(all); err == nil {
		t.Error("half of what is not measured")
	}
}

func TestReportOfTrips(t *testing.T) {
	all, err := choose(allTargets(), "a,c")
	if err != nil {
		t.Fatal(err)
	}
	onRedis := all[1]
	onRedis.stores = []store{{process: &process{}}}
	m := round(50_000, 2, 1)
	m.trips = 500
	onRedis.rounds, onRedis.paced = []measurement{m}, []measurement{m}
	var out strings.Builder
	reportTrips(&out, all)
	if err := reportPaced(&out, &options{half: "c"}, cores{load: []int{1}}, []*target{onRedis}, 12_500); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Redis trips for each decision: (c) 0.0100.",
		"Open loop, 12500 calls a second: half of what (c) reached above.",
		"| c   | ratelimitd, Redis | 25000       | 40.00     | 20.00    | 0.0100      | 2.00   | 2.00   |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestCallsOf(t *testing.T) {
	const stats = "# Commandstats\r\ncmdstat_evalsha_ro:calls=3,usec=1\r\ncmdstat_evalsha:calls=1234,usec=5,usec_per_call=1.00\r\ncmdstat_info:calls=2,usec=9\r\n"
	for command, want := range map[string]float64{"evalsha": 1234, "info": 2, "eval": 0} {
		if got := callsOf(stats, command); got != want {
			t.Errorf("%s: %v calls, want %v", command, got, want)
		}
	}
}
