package simulate

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/envoymodel"
)

// envoy enforces its share of a limit itself. It treats assignments as we observed with a real Envoy.
type envoy struct {
	envoymodel.Client
	f        *fleet
	stream   *assigner.Stream
	stop     context.CancelFunc
	told     chan assigner.Action
	reported time.Time
	away     time.Time // no stream until then
}

// envoyTick is how often an Envoy's requests arrive, and reportEvery how often it reports.
const (
	envoyTick   = 50 * time.Millisecond
	reportEvery = 5 * time.Second
)

// startQuota starts an assigner on the only replica, and its Envoys.
func (f *fleet) startQuota(ctx context.Context) {
	a := assigner.New(assigner.Options{Limiter: f.replicas[0].limiter, Log: slog.New(slog.DiscardHandler)})
	go func() { _ = a.Run(ctx) }()
	f.envoys = make([]*envoy, f.setup.envoys)
	for i := range f.envoys {
		f.envoys[i] = &envoy{f: f, told: make(chan assigner.Action, 1000)}
	}
	go func() {
		tick := time.NewTicker(envoyTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f.mu.Lock()
				for _, e := range f.envoys {
					e.step(ctx, a, time.Now())
				}
				f.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
}

// connect opens a stream, and receives its assignments with the delay of a message.
func (e *envoy) connect(ctx context.Context, a *assigner.Assigner) {
	ctx, e.stop = context.WithCancel(ctx)
	stream := a.Open("envoy")
	e.stream = stream
	go func() {
		defer func() { stream.Close(time.Now()) }()
		for {
			all, err := stream.Next(ctx, nil)
			if errors.Is(err, context.Canceled) {
				return
			}
			stream.Sent(time.Now())
			time.Sleep(e.f.trip) //nolint:forbidigo // virtual time
			for _, action := range all {
				e.told <- action
			}
		}
	}()
}

// step lets requests arrive, and reports. Requests that the Envoy passes are recorded like requests that the service
// allowed.
func (e *envoy) step(ctx context.Context, a *assigner.Assigner, now time.Time) {
	f := e.f
	for len(e.told) > 0 {
		if action := <-e.told; action.Abandon {
			e.Forget()
			e.reported = time.Time{}
		} else {
			e.Receive(now, action.Assignment)
		}
	}
	if e.stream == nil && !now.Before(e.away) {
		e.connect(ctx, a)
	}
	before := e.Passed
	e.Step(now, envoyTick)
	if n := int64(e.Passed - before); n > 0 {
		f.seen.events = append(f.seen.events, event{
			who: who{quotaRule, 0}, step: step{at: now.Sub(f.began), what: "request", rule: quotaRule, n: n},
			started: time.Since(f.began), began: f.now(), at: f.now(), ended: time.Since(f.began), order: f.next(), asked: true, allowed: true,
		})
	}
	switch first := e.reported.IsZero(); {
	case e.stream == nil, first && e.Allowed+e.Denied == 0:
	case first || now.Sub(e.reported) >= reportEvery:
		elapsed := now.Sub(e.reported).Truncate(time.Second)
		if first {
			elapsed = 0
		}
		allowed, denied := e.Report()
		e.reported = now
		e.stream.Report(now, domain, []assigner.Usage{{ID: entries(quotaRule, 0), Elapsed: elapsed, Allowed: allowed, Denied: denied}})
	}
}

// cutOff breaks the stream of an Envoy for a while. During that time the Envoy keeps its assignment.
func (e *envoy) cutOff(d time.Duration) {
	if e.stream != nil {
		e.stop()
		e.stream, e.away = nil, time.Now().Add(d)
	}
}
