package filter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Filter is one configuration of Envoy's.
type Filter struct {
	domain        string
	stage         uint32
	policies      []policy
	sourceCluster string
	timeout       time.Duration // longest wait for a decision; 0 leaves it to the store's timeout
	concerned     requestType
	settings      answerSettings
	counters      counters
	engine        *engine
	log           *slog.Logger
}

// Route is the configuration of one route. Its domain and policies replace the filter's, if it has some.
type Route struct {
	domain   string
	policies []policy
}

// requestType selects the requests that are limited.
type requestType uint8

const (
	both requestType = iota
	internal
	external
)

// answerSettings are the settings for Envoy's answer to a decision.
type answerSettings struct {
	failureModeDeny bool
	status          uint32
	statusOnError   uint32
	xRateLimit      bool
	retryAfter      bool
	noEnvoyHeader   bool // no x-envoy-ratelimited
	responseHeaders []addedHeader
	metadataIn      string
}

// counters count decisions by their result.
type counters struct{ ok, overLimit, failed, failureModeAllowed Counter }

// defaultTimeout is the default of Envoy's rate limit filter.
const defaultTimeout = 20 * time.Millisecond

// spare is the number of Go's processors in addition to one for each worker, so that no worker waits for background
// work.
const spare = 2

// Open returns a filter. Where Envoy only validates, it checks everything that needs no connection, and the filter is
// nil.
func Open(text []byte, host Host, log *slog.Logger) (*Filter, error) {
	o, m, err := read(text)
	if err != nil {
		return nil, err
	}
	f := &Filter{
		domain: m.GetDomain(), stage: m.GetStage(), sourceCluster: o.SourceCluster, timeout: defaultTimeout, log: log,
		concerned: map[string]requestType{"internal": internal, "external": external}[m.GetRequestType()],
	}
	if m.GetTimeout() != nil {
		f.timeout = m.GetTimeout().AsDuration()
	}
	f.policies, err = compile(m.GetRateLimits())
	if err = errors.Join(err, f.settings.read(m)); err != nil {
		return nil, err
	}
	validating := host.Validating()
	if f.engine, err = openEngine(&o.engineSettings, log, !validating); err != nil || validating {
		return nil, err
	}
	if err = f.counters.define(host, m); err != nil {
		f.Close(true)
		return nil, err
	}
	useProcessors(cmp.Or(o.Processors, max(runtime.GOMAXPROCS(0), host.Concurrency()+spare)))
	return f, nil
}

func useProcessors(n int) {
	if n != runtime.GOMAXPROCS(0) { // setting it stops the world
		runtime.GOMAXPROCS(n)
	}
}

// Close ends the engine of the filter, unless another filter uses it too. After the last filter, and with wait, it
// waits for the end of all engines, up to longestClose.
func (f *Filter) Close(wait bool) { f.engine.close(f.log, wait) }

func (c *counters) define(host Host, m *ratelimitv3.RateLimit) error {
	prefix := "ratelimit."
	if p := m.GetStatPrefix(); p != "" {
		prefix += p + "."
	}
	for _, one := range []struct {
		to   *Counter
		name string
	}{{&c.ok, "ok"}, {&c.overLimit, "over_limit"}, {&c.failed, "error"}, {&c.failureModeAllowed, "failure_mode_allowed"}} {
		var err error
		if *one.to, err = host.DefineCounter(prefix + m.GetDomain() + "." + one.name); err != nil {
			return fmt.Errorf("define the counters of domain %q: %w", m.GetDomain(), err)
		}
	}
	return nil
}

// Result tells Envoy whether to continue with a request.
type Result uint8

// The results.
const (
	Continue Result = iota
	Stop            // the request has been answered
	Pause           // the request waits: Resume or Leave comes next
)

// Call is the decision of one request.
type Call struct {
	building
	filter   *Filter
	request  limiter.Request
	decision limiter.Decision
	until    deadline
	done     func(error)

	mu    sync.Mutex
	state state
	err   error       // error of an answered call
	waker Waker       // wakes a paused call
	timer *time.Timer // calls expire at the deadline of a paused call
}

// state is the progress of a call. Exactly one of the answer, the deadline and the end of the request takes a call out
// of the state paused, and only the first two of them wake the request.
type state uint8

const (
	begun    state = iota // the hook for the headers is running
	paused                // the request waits
	answered              // the decision has been made, or could not be made
	late                  // the deadline has passed
	ended                 // the request has ended or is answered: drop the decision
)

// deadline is a context that only has a deadline. Without a channel no goroutine has to end it: the store watches the
// time.
type deadline struct{ at time.Time }

func (d *deadline) Deadline() (time.Time, bool) { return d.at, !d.at.IsZero() }
func (*deadline) Done() <-chan struct{}         { return nil }
func (*deadline) Value(any) any                 { return nil }
func (d *deadline) Err() error {
	if !d.at.IsZero() && !time.Now().Before(d.at) {
		return context.DeadlineExceeded
	}
	return nil
}

var calls = sync.Pool{New: func() any {
	c := new(Call)
	c.done = c.answer
	return c
}}

// release keeps a call for another request. It is only for a call that was decided immediately: nobody else refers to
// that.
func (c *Call) release() {
	const most = 64 // descriptors and entries, and KiB of text
	if cap(c.entries) > most || cap(c.descriptors) > most || cap(c.text) > most<<10 {
		return
	}
	clear(c.entries)
	clear(c.descriptors)
	c.building = building{descriptors: c.descriptors[:0], entries: c.entries[:0], spans: c.spans[:0], text: c.text[:0]}
	c.request, c.filter, c.state, c.err = limiter.Request{}, nil, begun, nil
	calls.Put(c)
}

// Begin decides a request whose headers have arrived. route may be nil. Only with the result Pause there is a call.
func (f *Filter) Begin(s Stream, route *Route) (*Call, Result) {
	domain, policies := f.domain, f.policies
	if route != nil {
		if route.domain != "" {
			domain = route.domain
		}
		if len(route.policies) > 0 {
			policies = route.policies
		}
	}
	if len(policies) == 0 || !f.concerns(s) {
		return nil, Continue
	}
	c := calls.Get().(*Call)
	c.filter, c.stream, c.sourceCluster = f, s, f.sourceCluster
	err := c.describe(policies)
	c.stream = nil // it ends with the hook
	if err != nil {
		return nil, f.fail(s, err)
	}
	if len(c.descriptors) == 0 {
		c.release()
		return nil, Continue
	}
	if c.tooLong() {
		c.release()
		return nil, f.fail(s, errTooLong)
	}
	c.request.Domain, c.request.Descriptors = domain, c.descriptors
	now := time.Now()
	c.until = deadline{}
	if f.timeout > 0 {
		c.until.at = now.Add(f.timeout)
	}
	if decided, err := c.start(now); decided {
		result := f.answer(s, &c.decision, err)
		if _, panicked := errors.AsType[*async.PanicError](err); !panicked { // after a panic the engine may still refer to it
			c.release()
		}
		return nil, result
	}
	return c.pause(s, now)
}

// describe builds the descriptors. A panic is returned as an error.
func (c *Call) describe(policies []policy) (err error) {
	defer async.Recover(&err)
	c.build(policies, c.filter.stage)
	return nil
}

// errTooLong is the error of a request whose descriptors are beyond the bounds that the service has.
var errTooLong = errors.New("a value of a descriptor is too long")

func (c *Call) tooLong() bool {
	long := func(e descriptor.Entry) bool { return len(e.Value) > limiter.MaxTextBytes }
	return len(c.text) > limiter.MaxTextBytes && slices.ContainsFunc(c.entries, long)
}

// concerns reports whether Envoy's filter would ask about a request.
func (f *Filter) concerns(s Stream) bool {
	if _, known := s.Cluster(); !known {
		return false
	}
	if f.concerned == both {
		return true
	}
	value, _ := s.Header("x-envoy-internal", 0)
	return (value == "true") == (f.concerned == internal)
}

// start asks the engine. A panic of the engine is an error.
func (c *Call) start(now time.Time) (decided bool, err error) {
	decided = true
	defer async.Recover(&err)
	return c.filter.engine.Start(&c.until, now, nil, &c.request, &c.decision, c.done)
}

// answer receives a decision that was not made immediately. The engine calls it from any goroutine.
func (c *Call) answer(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == begun || c.state == paused {
		c.wake(answered, err)
	}
}

// expire ends the wait at the deadline.
func (c *Call) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == paused {
		c.wake(late, context.DeadlineExceeded)
	}
}

// wake ends the waiting. The call is locked, so that the waker is not freed at the same time.
func (c *Call) wake(to state, err error) {
	if c.state == paused {
		c.timer.Stop()
		c.waker.Wake()
	}
	c.state, c.err = to, err
}

// pause lets a request wait for its decision, unless that has arrived in the meantime.
func (c *Call) pause(s Stream, now time.Time) (*Call, Result) {
	c.mu.Lock()
	if c.state == answered {
		c.state = ended
		c.mu.Unlock()
		return nil, c.filter.answer(s, &c.decision, c.err)
	}
	defer c.mu.Unlock()
	c.state, c.waker = paused, s.Waker()
	wait := time.Duration(1<<63 - 1)
	if c.filter.timeout > 0 {
		wait = time.Until(now.Add(c.filter.timeout))
	}
	c.timer = time.AfterFunc(wait, c.expire)
	return c, Pause
}

// Resume answers a request that was woken. Continue: the request may pass.
func (c *Call) Resume(s Stream) Result {
	c.mu.Lock()
	was, err := c.state, c.err
	if was == answered || was == late {
		c.end()
	}
	c.mu.Unlock()
	switch was {
	case answered:
		return c.filter.answer(s, &c.decision, err)
	case late:
		return c.filter.answer(s, nil, err) // the engine may still write the decision
	default:
		return Pause // nothing has woken it
	}
}

// Leave ends a call whose request ends while it is paused. A later decision is dropped.
func (c *Call) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != ended {
		c.end()
	}
}

// end frees the timer and the waker, which only a paused request has. The call is locked.
func (c *Call) end() {
	c.state = ended
	c.timer.Stop()
	c.waker.Free()
}
