package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/problem"
)

// jsonHandler decides over HTTP. The request is a RateLimitRequest in protobuf's JSON, the answer a RateLimitResponse.
type jsonHandler struct {
	decider Decider
	bounds  Requests
	answers *answers
	calls   *intake.Calls
	room    *intake.Class // memory of medium and large bodies, also decoded

	medium, large                chan struct{} // semaphores of requests with such a body
	decodingSmall, decodingLarge chan struct{} // semaphores of bodies being decoded
}

// A body of at least this many bytes is medium or large, and at most this many requests with such a body may be in
// flight. A large one can cost ten times its size. Medium ones could fill the memory if thousands of clients sent them
// slowly. An ordinary body has a few hundred bytes.
const (
	mediumBody, maxMedium = 4 << 10, 256
	largeBody, maxLarge   = 64 << 10, 8
)

// Memory for decoding a body: this many times its size, plus this many bytes for each object in it.
const decodedCopies, objectSize = 4, 192

// errTooManyLarge rejects a request with a medium or large body.
var errTooManyLarge = errors.New("too many large requests in flight")

func (h *jsonHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	code := codes.Internal // if the code below panics
	defer func() { h.answers.observe(start, code) }()

	inFlight, ok := h.calls.Begin(connOfRequest(r))
	if !ok {
		code = codes.ResourceExhausted
		http.Error(w, "too many calls in flight", http.StatusServiceUnavailable) // 429 would be a decision
		return
	}
	h.calls.Arrived(&inFlight, start) // the HTTP server has separate timeouts
	defer func() { h.calls.End(inFlight) }()

	var d limiter.Decision
	body, err := h.decide(w, r, start, &d)
	code = grpcstatus.Code(err)
	if errors.Is(err, errTooManyLarge) {
		code = codes.ResourceExhausted
	}
	if err == nil {
		h.answer(w, r, &d, body)
		return
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		http.Error(w, grpcstatus.Message(err), http.StatusRequestEntityTooLarge)
	case code == codes.InvalidArgument:
		http.Error(w, grpcstatus.Message(err), http.StatusBadRequest)
	default:
		http.Error(w, grpcstatus.Message(err), http.StatusServiceUnavailable)
	}
}

// decide decodes a request, decides it and returns the JSON of the answer. It converts through the wire format, so that
// only decodeRequest and appendResponse depend on the fields.
func (h *jsonHandler) decide(w http.ResponseWriter, r *http.Request, now time.Time,
	d *limiter.Decision) ([]byte, error) {
	body, end, err := h.read(w, r)
	if err != nil {
		return nil, err
	}
	defer end()
	var req limiter.Request
	if err := h.decode(body, &req); err != nil {
		return nil, err
	}
	if err := limiter.Decide(withCaller(r), h.decider, now, &req, d); err != nil {
		return nil, err
	}
	var out ratelimitv3.RateLimitResponse
	if err := proto.Unmarshal(appendResponse(nil, d), &out); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	answer, err := protojson.Marshal(&out)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	var compact bytes.Buffer // protojson puts spaces at random
	if err := json.Compact(&compact, answer); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return compact.Bytes(), nil
}

// decode decodes a request. At most as many small bodies are decoded concurrently as there are processors: more would
// not be faster, and each uses thirty times its size. Large bodies use at most half of the processors, and small ones
// do not wait for them.
func (h *jsonHandler) decode(body []byte, req *limiter.Request) error {
	decoding := h.decodingSmall
	if len(body) >= largeBody {
		decoding = h.decodingLarge
	}
	decoding <- struct{}{}
	defer func() { <-decoding }()
	if len(body) >= mediumBody {
		size := decodedCopies*int64(len(body)) + objectSize*int64(objects(body))
		if !h.room.Take(size) {
			return errTooManyLarge
		}
		defer h.room.Add(-size)
	}
	var in ratelimitv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &in); err != nil {
		return &limiter.InvalidError{Message: faultOf(body, in.ProtoReflect().Descriptor(), err), Err: err}
	}
	data, err := proto.Marshal(&in)
	if err != nil {
		return &limiter.InvalidError{Message: err.Error(), Err: err}
	}
	return decodeRequest(data, req, h.bounds)
}

// read reads the body. After the answer, end must be called.
func (h *jsonHandler) read(w http.ResponseWriter, r *http.Request) (body []byte, end func(), err error) {
	end = func() {}
	from := http.MaxBytesReader(w, r.Body, int64(h.bounds.MaxBytes))
	body, err = io.ReadAll(io.LimitReader(from, mediumBody))
	for _, next := range []struct {
		size   int
		places chan struct{}
		most   int64 // size up to which a body is in this class
	}{{mediumBody, h.medium, largeBody}, {largeBody, h.large, math.MaxInt64}} {
		if err != nil || len(body) < next.size {
			break
		}
		end() // frees the place of a medium body
		most := min(next.most, int64(h.bounds.MaxBytes))
		announced := min(r.ContentLength, most)
		size := announced
		if announced < 0 {
			size = 2 * most // its buffer grows
		}
		if end, err = h.place(next.places, size); err != nil {
			return nil, nil, err
		}
		all := bytes.NewBuffer(body)
		// growing step by step would leave garbage of several times the size
		all.Grow(max(0, int(announced)-len(body)) + bytes.MinRead)
		_, err = all.ReadFrom(io.LimitReader(from, next.most-int64(len(body))))
		body = all.Bytes()
	}
	switch {
	case err != nil:
		err = &limiter.InvalidError{Message: "read body: " + err.Error(), Err: err}
	case objects(body) > h.bounds.maxObjects():
		err = tooMuch("descriptors", "more than %d with %d entries each", h.bounds.MaxDescriptors, h.bounds.MaxEntries)
	default:
		return body, end, nil
	}
	end()
	return nil, nil, err
}

// place reserves a place and memory for a body. end releases them.
func (h *jsonHandler) place(places chan struct{}, size int64) (end func(), err error) {
	if !h.room.Take(size) {
		return nil, errTooManyLarge
	}
	select {
	case places <- struct{}{}:
		return func() { <-places; h.room.Add(-size) }, nil
	default:
		h.room.Add(-size)
		return nil, errTooManyLarge
	}
}

// maxObjects returns the largest number of objects in the JSON of a request: the request, its descriptors, their limits
// and their entries. It is a float64 because it can exceed any integer.
func (r *Requests) maxObjects() float64 {
	return 1 + float64(r.MaxDescriptors)*(2+float64(r.MaxEntries))
}

// objects counts the objects in JSON. It runs before protojson, which allocates a message of about a hundred bytes for
// each {}.
func objects(text []byte) (n float64) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case '{':
			if !quoted {
				n++
			}
		}
	}
	return n
}

// answer writes a decision. The body is a RateLimitResponse; the headers in it are also HTTP headers. If the client
// accepts problem details, a denial is written as those instead.
func (h *jsonHandler) answer(w http.ResponseWriter, r *http.Request, d *limiter.Decision, body []byte) {
	for _, header := range d.Headers {
		w.Header().Add(header.Key, header.Value)
	}
	if d.Delay > 0 {
		w.Header().Set(descriptor.DelayHeader, delayMillis(d))
	}
	status := http.StatusOK
	if d.Code == limiter.OverLimit {
		status = http.StatusTooManyRequests
		if strings.Contains(strings.Join(r.Header.Values("Accept"), ","), problem.ContentType) {
			problem.Write(w, status, problemOf(d), "too many requests", w.Header().Get("RateLimit"))
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// problemOf returns the reason of a denial.
func problemOf(d *limiter.Decision) problem.Type {
	t := problem.QuotaExceeded
	for i := range d.Statuses {
		switch s := &d.Statuses[i]; {
		case s.Degraded != descriptor.OnErrorDefault:
			return problem.ReducedCapacity
		case s.Code == limiter.OverLimit && s.Penalised:
			t = problem.AbnormalUsage
		}
	}
	return t
}
