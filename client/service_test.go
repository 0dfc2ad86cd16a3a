package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// service is a service in virtual time: a connection whose calls take as long as the test says.
type service struct {
	takes  time.Duration                                                             // the time of a call
	decide func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse            // nil lets all requests pass
	reject func(batch []*ratelimitdv1.DecideRequest) (err error)                     // error of each call; nil for success
	answer func(*ratelimitdv1.DecideBatchResponse) *ratelimitdv1.DecideBatchResponse // changes the answer

	mu      sync.Mutex
	batches []batch
}

// batch is a call that the service got.
type batch struct {
	requests []*ratelimitdv1.DecideRequest
	at       time.Time
	ctx      context.Context
}

// Invoke implements grpc.ClientConnInterface.
func (s *service) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if method != ratelimitdv1.DecisionService_DecideBatch_FullMethodName {
		return errors.New("not expected: " + method)
	}
	sent, err := proto.Marshal(args.(proto.Message))
	if err != nil {
		return err
	}
	var request ratelimitdv1.DecideBatchRequest
	if err := proto.Unmarshal(sent, &request); err != nil {
		return err
	}
	s.mu.Lock()
	s.batches = append(s.batches, batch{request.GetRequests(), time.Now(), ctx})
	s.mu.Unlock()
	if s.takes > 0 {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if s.reject != nil {
		if err := s.reject(request.GetRequests()); err != nil {
			return err
		}
	}
	response := &ratelimitdv1.DecideBatchResponse{}
	for _, r := range request.GetRequests() {
		answer := passes()
		if s.decide != nil {
			answer = s.decide(r)
		}
		response.Responses = append(response.Responses, answer)
	}
	if s.answer != nil {
		response = s.answer(response)
	}
	proto.Merge(reply.(proto.Message), response)
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (s *service) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("not expected: a stream")
}

// calls are the calls so far.
func (s *service) calls() []batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

// sizes are how many requests each call had.
func (s *service) sizes() (all []int) {
	for _, b := range s.calls() {
		all = append(all, len(b.requests))
	}
	return all
}

// passes is the answer to a request that may pass.
func passes() *ratelimitdv1.DecideResponse {
	return &ratelimitdv1.DecideResponse{Code: ratelimitdv1.Code_CODE_OK, Statuses: []*ratelimitdv1.DecideStatus{
		{Code: ratelimitdv1.Code_CODE_OK, Rule: "d.k", Limit: 10, Remaining: 9, ResetAfter: durationpb.New(time.Minute)},
	}}
}

// denied is the answer to a request that may pass after some time; negative means never.
func denied(after time.Duration) *ratelimitdv1.DecideResponse {
	s := &ratelimitdv1.DecideStatus{Code: ratelimitdv1.Code_CODE_OVER_LIMIT, Rule: "d.k", Limit: 10, ResetAfter: durationpb.New(time.Minute)}
	if after >= 0 {
		s.RetryAfter = durationpb.New(after)
	}
	return &ratelimitdv1.DecideResponse{
		Code: ratelimitdv1.Code_CODE_OVER_LIMIT, Statuses: []*ratelimitdv1.DecideStatus{s},
		Headers: []*ratelimitdv1.Header{{Key: "x-rule", Value: "k"}},
	}
}

// value is the value of the first entry of a request.
func value(r *ratelimitdv1.DecideRequest) string {
	return r.GetDescriptors()[0].GetEntries()[0].GetValue()
}

var _ grpc.ClientConnInterface = (*service)(nil)

// must fails the test if there is an error.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
