package conform

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// fieldCases repeat problems reported by users of rate limit services. Those that change the rules or stop the store
// come last.
var fieldCases = []counted{
	{Case{Name: "stricter-limit", Why: "Of two limits under one condition, the stricter one holds.",
		Report: "https://github.com/Kuadrant/limitador/issues/513"},
		[]limit{{key: "user", requests: 30, unit: "day"}, {key: "org", value: "o", requests: 3, unit: "day"}}, false,
		func(t *talk) string { return t.wantPassed(t.passed(10, "user=a", "org=o"), 3, "of 10 requests") }},

	{Case{Name: "denial-headers", Why: "A denial shows the limit that denied, not one that passed.",
		Report: "https://github.com/agentgateway/agentgateway/issues/3328"},
		[]limit{{key: "tokens", requests: 10, unit: "day"}, {key: "calls", requests: 12, unit: "hour"}}, false,
		func(t *talk) string {
			t.ask(8, "tokens=a", "calls=a")
			return t.wantShown(t.ask(3, "tokens=a", "calls=a"), "10")
		}},

	{Case{Name: "refund", Why: "A refund gives hits back, and is not charged.",
		Report: "https://github.com/envoyproxy/ratelimit/pull/1140"},
		[]limit{{key: "user", requests: 5, unit: "day"}}, false,
		func(t *talk) string {
			t.ask(4, "user=a")
			r := request(t.domain, 0, "user=a")
			r.Descriptors[0].HitsAddend, r.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(3), true
			_, err := t.Ask(t.ctx, r)
			t.failed(err)
			return t.wantPassed(t.passed(10, "user=a"), 4, "after 4 of 5 hits and a refund of 3")
		}},

	{Case{Name: "retry-after", Why: "A client that waits as long as a denial says passes.",
		Report: "https://github.com/alisaifee/flask-limiter/issues/62"},
		[]limit{{key: "user", requests: 3, unit: "second"}}, false, waitAsTold},

	{Case{Name: "several-counters",
		Why:    "Counters of several users are exact at the same time, on a store of several servers too.",
		Report: "https://github.com/BerriAI/litellm/issues/30065"},
		[]limit{{key: "user", requests: 50, unit: "day"}}, false,
		func(t *talk) string {
			return t.wantPassed(t.send(6*100, 0, "user=a", "user=b", "user=c", "user=d", "user=e", "user=f"), 6*50,
				"of 6 times 100 requests")
		}},

	{Case{Name: "reload", Why: "No hit is lost, and no request fails, while rules are loaded.",
		Report: "https://github.com/nuetzliches/hookaido/pull/239"},
		[]limit{{key: "user", requests: perDay, unit: "day"}}, false,
		func(t *talk) string {
			passed := t.send(perDay/2, 0, "user=one")
			var sent sync.WaitGroup
			sent.Go(func() { passed += t.send(perDay/4, 0, "user=one") })
			t.files["reloaded"] = t.Form.rules(t.suite.domain("reloaded"), nil)
			err := t.load(t.ctx, t.suite.domain("reloaded"), "reloaded")
			sent.Wait()
			t.failed(err)
			return t.wantPassed(passed+t.send(perDay, 0, "user=one"), perDay, "before, during and after")
		}},

	{Case{Name: "reservation", Why: "Requests without a reservation cannot use what is reserved.",
		Report: "https://github.com/Kuadrant/limitador/issues/506"},
		[]limit{{key: "user", requests: 10, unit: "day", reservations: true}}, true,
		func(t *talk) string {
			if failure, ok := t.reserve(8, "user=a"); !ok {
				return failure
			}
			return t.wantPassed(t.passed(10, "user=a"), 2, "of 10 requests while 8 of 10 hits are reserved")
		}},

	{Case{Name: "store-stops", Why: "While the store is down, at most the limit passes once more.",
		Report: "https://github.com/go-chi/httprate-redis/pull/15"},
		[]limit{{key: "user", requests: 5, unit: "day"}}, false, stopStore},
}

// waitAsTold uses up a second's limit and waits for the time in the denial, three times.
func waitAsTold(t *talk) string {
	for range 3 {
		var answer *ratelimitv3.RateLimitResponse
		for range 100 { // a second may end in the meantime
			if answer = t.ask(1, "user=a"); t.err != nil || !passes(answer) {
				break
			}
		}
		wait, told := waitOf(answer)
		if t.err != nil || !told {
			return t.skip("not offered: a denial does not say how long to wait")
		}
		t.failed(pause(t.ctx, wait))
		if answer := t.ask(1, "user=a"); t.err == nil && !passes(answer) {
			return fmt.Sprintf("a denial said to wait %s, and the request after that was denied", wait)
		}
	}
	return ""
}

// waitOf returns the time to wait that a denial contains: in Retry-After, in a header of a reset, or in the status that
// denied.
func waitOf(denial *ratelimitv3.RateLimitResponse) (time.Duration, bool) {
	for _, name := range []string{"retry-after", "reset"} {
		for _, h := range denial.GetResponseHeadersToAdd() {
			if seconds, err := strconv.Atoi(h.GetValue()); err == nil && strings.Contains(strings.ToLower(h.GetKey()), name) {
				return time.Duration(seconds) * time.Second, true
			}
		}
	}
	for _, s := range denial.GetStatuses() {
		if s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT && s.GetDurationUntilReset() != nil {
			return s.GetDurationUntilReset().AsDuration(), true
		}
	}
	return 0, false
}

// wantShown compares the limit that clients see: in a header, or in the status with the least left, from which Envoy
// makes headers.
func (t *talk) wantShown(denial *ratelimitv3.RateLimitResponse, want string) string {
	if t.err == nil && passes(denial) {
		return "a request above the limit passed"
	}
	shown := ""
	for _, h := range denial.GetResponseHeadersToAdd() {
		if name := strings.ToLower(h.GetKey()); strings.HasSuffix(name, "ratelimit-limit") {
			shown, _, _ = strings.Cut(h.GetValue(), ",")
		}
	}
	limited := slices.DeleteFunc(denial.GetStatuses(),
		func(s *ratelimitv3.RateLimitResponse_DescriptorStatus) bool { return s.GetCurrentLimit() == nil })
	if shown == "" && len(limited) > 0 {
		least := slices.MinFunc(limited, func(a, b *ratelimitv3.RateLimitResponse_DescriptorStatus) int {
			return int(a.GetLimitRemaining()) - int(b.GetLimitRemaining())
		})
		shown = strconv.Itoa(int(least.GetCurrentLimit().GetRequestsPerUnit()))
	}
	switch shown {
	case "":
		return t.skip("not offered: a denial shows no limit")
	case want:
		return ""
	}
	return fmt.Sprintf("the denial shows a limit of %s, and the limit of %s denied", shown, want)
}

// reserve reserves hits as Kuadrant's gateway does, under rules that are loaded now: envoyproxy/ratelimit would reject
// them.
func (t *talk) reserve(hits uint64, entry string) (failure string, ok bool) {
	r := request(t.domain, 0, entry) // its first fields are those of a ReserveRequest
	r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), hits))
	if answer, err := t.Reserve(t.ctx, r); err == nil && answer == nil {
		return t.skip("not offered: there is no Reserve of kuadrant.service.ratelimit.v1.RateLimitService"), false
	}
	t.files[t.c.Name] = t.c.Rules
	t.failed(t.load(t.ctx, t.domain, t.c.Name))
	answer, err := t.Reserve(t.ctx, r)
	for until := time.Now().Add(t.Wait); err != nil && t.ctx.Err() == nil && time.Now().Before(until); answer,
		err = t.Reserve(t.ctx, r) {
		_ = pause(t.ctx, 100*time.Millisecond) // replicas agree on a key for ids first
	}
	t.failed(err)
	if !passes(answer) {
		return fmt.Sprintf("%d of 10 hits could not be reserved", hits), false
	}
	return "", true
}

// stopStore stops the store after the limit is used up. After an error, the proxy decides: the request does not count
// as passed.
func stopStore(t *talk) string {
	if t.StopStore == "" || t.StartStore == "" {
		return t.skip("no commands to stop and start the store were given")
	}
	passed, after := t.passed(5, "user=a"), int64(0)
	t.failed(shell(t.ctx, t.StopStore))
	for range 4 * 5 {
		if answer, err := t.Ask(t.ctx, request(t.domain, 1, "user=a")); err == nil && passes(answer) {
			after++
		}
	}
	t.failed(errors.Join(shell(t.ctx, t.StartStore), t.await(t.ctx, t.suite.domain("probe"))))
	if passed == 5 && after <= 5 {
		return ""
	}
	return fmt.Sprintf("%d passed of a limit of 5, and %d more of 20 while the store was down", passed, after)
}
