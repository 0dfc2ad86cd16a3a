package filter

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// The texts and flags of Envoy's filter: for %RESPONSE_CODE_DETAILS%, and as response flags. A module can only set a
// custom flag of the same name.
const (
	detailsOverLimit = "request_rate_limited"
	detailsError     = "rate_limiter_error"
	flagOverLimit    = "RL"
	flagError        = "RLSE"
)

// read reads the settings from the configuration of Envoy's rate limit filter.
func (a *answerSettings) read(m *ratelimitv3.RateLimit) error {
	*a = answerSettings{
		failureModeDeny: m.GetFailureModeDeny(),
		status:          uint32(m.GetRateLimitedStatus().GetCode()),
		statusOnError:   cmp.Or(uint32(m.GetStatusOnError().GetCode()), 500),
		xRateLimit:      m.GetEnableXRatelimitHeaders() == ratelimitv3.RateLimit_DRAFT_VERSION_03,
		retryAfter:      m.GetEnableRetryAfterHeader(),
		noEnvoyHeader:   m.GetDisableXEnvoyRatelimitedHeader(),
		metadataIn:      cmp.Or(m.GetMetadataNamespace(), "envoy.filters.http.ratelimit"),
	}
	if a.status < 400 { // Envoy's filter does the same
		a.status = 429
	}
	for i, h := range m.GetResponseHeadersToAdd() {
		key, value := strings.ToLower(h.GetHeader().GetKey()), h.GetHeader().GetValue()
		switch {
		case strings.Contains(strings.ReplaceAll(value, "%%", ""), "%"):
			return fmt.Errorf("response_headers_to_add[%d]: the value %q is a format, which a module cannot fill in", i, value)
		case len(h.GetHeader().GetRawValue()) > 0 ||
			h.ProtoReflect().Has(h.ProtoReflect().Descriptor().Fields().ByName("append")):
			return fmt.Errorf("response_headers_to_add[%d]: raw_value and append are not supported: use value and append_action",
				i)
		case value != "" || h.GetKeepEmptyValue():
			a.responseHeaders = append(a.responseHeaders,
				addedHeader{limiter.Header{Key: key, Value: strings.ReplaceAll(value, "%%", "%")}, h.GetAppendAction()})
		}
	}
	return nil
}

// addedHeader is an item of response_headers_to_add.
type addedHeader struct {
	limiter.Header
	action corev3.HeaderValueOption_HeaderAppendAction
}

func (a *addedHeader) isIn(headers []limiter.Header) bool {
	return slices.ContainsFunc(headers, func(h limiter.Header) bool { return strings.EqualFold(h.Key, a.Key) })
}

func (a *addedHeader) overwrites() bool {
	return a.action == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD ||
		a.action == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS
}

// withResponseHeaders adds response_headers_to_add to the headers of a reply. As in Envoy, conditions are about the
// headers before that, and those that overwrite come first.
func (a *answerSettings) withResponseHeaders(headers []limiter.Header) []limiter.Header {
	if len(a.responseHeaders) == 0 {
		return headers
	}
	before := slices.Clone(headers)
	for _, overwrites := range []bool{true, false} {
		for i := range a.responseHeaders {
			h := &a.responseHeaders[i]
			if h.overwrites() != overwrites || h.action == corev3.HeaderValueOption_OVERWRITE_IF_EXISTS && !h.isIn(before) ||
				h.action == corev3.HeaderValueOption_ADD_IF_ABSENT && h.isIn(before) {
				continue
			}
			if overwrites {
				headers = slices.DeleteFunc(headers, func(old limiter.Header) bool { return strings.EqualFold(old.Key, h.Key) })
			}
			headers = append(headers, h.Header)
		}
	}
	return headers
}

// answer answers a request as Envoy's filter does, with a decision or with the error of a failed one.
func (f *Filter) answer(s Stream, d *limiter.Decision, err error) Result {
	var headers []limiter.Header
	if err == nil {
		headers, err = f.prepare(s, d)
	}
	if err != nil {
		return f.fail(s, err)
	}
	if d.Code != limiter.OverLimit {
		s.Count(f.counters.ok)
		if len(d.Upstream) > 0 {
			s.AddToRequest(d.Upstream)
		}
		if len(headers) > 0 {
			s.AddToResponse(headers)
		}
		return Continue
	}
	s.Count(f.counters.overLimit)
	s.Flag(flagOverLimit)
	s.Reply(f.settings.status, headers, detailsOverLimit)
	return Stop
}

// prepare does every step of an answer that may fail, and returns the headers. A panic becomes an error before any
// answer is sent.
func (f *Filter) prepare(s Stream, d *limiter.Decision) (headers []limiter.Header, err error) {
	defer async.Recover(&err)
	f.setMetadata(s, d)
	headers = f.headers(d)
	if d.Code == limiter.OverLimit {
		headers = f.settings.withResponseHeaders(headers)
	}
	return headers, nil
}

// fail answers a request without a decision.
func (f *Filter) fail(s Stream, err error) Result {
	if p, ok := errors.AsType[*async.PanicError](err); ok {
		f.log.Error("a mistake in the module kept it from deciding a request", "panic", p.Value, "stack", string(p.Stack))
	}
	s.Count(f.counters.failed)
	if !f.settings.failureModeDeny {
		s.Count(f.counters.failureModeAllowed)
		return Continue
	}
	s.Flag(flagError)
	s.Reply(f.settings.statusOnError, nil, detailsError)
	return Stop
}

// headers returns the headers of the response: those of the rules, and those that Envoy's rate limit filter would add.
func (f *Filter) headers(d *limiter.Decision) []limiter.Header {
	headers := d.Headers
	if d.Code == limiter.OverLimit {
		if !f.settings.noEnvoyHeader {
			headers = append(headers, limiter.Header{Key: "x-envoy-ratelimited", Value: "true"})
		}
		if f.settings.retryAfter && f.settings.status == 429 {
			headers = appendRetryAfter(headers, d)
		}
	}
	if f.settings.xRateLimit {
		headers = appendXRateLimit(headers, d)
	}
	d.Headers = headers[:0] // the next decision uses the room
	return headers
}

// remaining returns the limit_remaining that the service sends: none over the limit.
func remaining(s *limiter.Status) uint64 {
	if s.Code == limiter.OverLimit {
		return 0
	}
	return min(s.Remaining, math.MaxUint32)
}

// appendXRateLimit appends the headers of enable_x_ratelimit_headers: the limit with the least left, and all limits
// with their windows.
func appendXRateLimit(headers []limiter.Header, d *limiter.Decision) []limiter.Header {
	var tightest *limiter.Status
	var policies []byte
	for i := range d.Statuses {
		s := &d.Statuses[i]
		if !s.Limited {
			continue
		}
		if tightest == nil || remaining(s) < remaining(tightest) {
			tightest = s
		}
		if window := s.Limit.Unit.Length() * time.Duration(max(s.Limit.Multiplier, 1)); window > 0 {
			policies = appendRequests(append(policies, ", "...), s)
			policies = strconv.AppendInt(append(policies, ";w="...), int64(window/time.Second), 10)
			if s.Limit.Name != "" {
				policies = append(append(append(policies, `;name="`...), limiter.SafeName(s.Limit.Name)...), '"')
			}
		}
	}
	if tightest == nil {
		return headers
	}
	return append(headers,
		limiter.Header{Key: "x-ratelimit-limit", Value: string(append(appendRequests(nil, tightest), policies...))},
		limiter.Header{Key: "x-ratelimit-remaining", Value: strconv.FormatUint(remaining(tightest), 10)},
		limiter.Header{Key: "x-ratelimit-reset", Value: strconv.FormatInt(int64(tightest.UntilReset()/time.Second), 10)})
}

func appendRequests(b []byte, s *limiter.Status) []byte {
	return strconv.AppendUint(b, min(s.Limit.Requests, math.MaxUint32), 10)
}

// appendRetryAfter appends the header of enable_retry_after_header, unless the rules have made one.
func appendRetryAfter(headers []limiter.Header, d *limiter.Decision) []limiter.Header {
	longest, over := time.Second, false
	for _, h := range headers {
		if strings.EqualFold(h.Key, "retry-after") {
			return headers
		}
	}
	for i := range d.Statuses {
		if s := &d.Statuses[i]; s.Code == limiter.OverLimit {
			over, longest = true, max(longest, s.UntilReset())
		}
	}
	if over {
		headers = append(headers, limiter.Header{Key: "retry-after",
			Value: strconv.FormatInt(int64(longest/time.Second), 10)})
	}
	return headers
}

func (f *Filter) setMetadata(s Stream, d *limiter.Decision) {
	if len(d.Metadata) == 0 {
		return
	}
	m, err := structpb.NewStruct(sendable(d.Metadata).(map[string]any))
	if err == nil {
		var message []byte
		if message, err = proto.Marshal(m); err == nil {
			s.SetMetadata(f.settings.metadataIn, message)
			return
		}
	}
	f.log.Debug("dynamic metadata could not be set", "error", err)
}

// sendable replaces invalid UTF-8, which a google.protobuf.Struct cannot hold. It changes a copy: parts of the value
// belong to the rules.
func sendable(value any) any {
	switch v := value.(type) {
	case string:
		return strings.ToValidUTF8(v, "\uFFFD")
	case map[string]any:
		to := make(map[string]any, len(v))
		for key, one := range v {
			to[strings.ToValidUTF8(key, "\uFFFD")] = sendable(one)
		}
		return to
	case []any:
		to := make([]any, len(v))
		for i, one := range v {
			to[i] = sendable(one)
		}
		return to
	default:
		return v
	}
}
