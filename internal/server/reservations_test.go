package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// modelLimits are 1,000 tokens and 3 calls an hour that can be reserved, and a limit that cannot.
func modelLimits(t testing.TB) *limiter.Limiter {
	t.Helper()
	rule := func(name string, requests uint64, b *descriptor.Reservations) descriptor.NodeSpec {
		return descriptor.NodeSpec{Key: name, Rule: &descriptor.Rule{Limits: []descriptor.Limit{
			{Requests: requests, Window: descriptor.Window{Unit: descriptor.Hour}, Reservations: b},
		}}}
	}
	b := descriptor.DefaultReservations()
	half, weighted := b, b
	weighted.Cost = descriptor.Cost{{Name: "cached", Millionths: 100_000}, {Name: "input", Millionths: 1_000_000}, {Name: "output", Millionths: 4_000_000}}
	half.MaxShare = descriptor.MaxShareWhole / 2
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "llm", Children: []descriptor.NodeSpec{
		rule("tokens", 1000, &weighted),
		rule("calls", 3, &b),
		rule("half", 100, &half),
		rule("plain", 10, nil),
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	return l
}

func descriptorOf(key string, amount *ratelimitdv1.Amount) *ratelimitdv1.Descriptor {
	return &ratelimitdv1.Descriptor{Entries: []*ratelimitdv1.Entry{{Key: key, Value: "alice"}}, Amount: amount}
}

func hitsOf(n uint64) *ratelimitdv1.Amount { return &ratelimitdv1.Amount{Hits: n} }

// reserving is a client with a server.
type reserving struct {
	ratelimitdv1.ReservationServiceClient
	t   *testing.T
	ctx context.Context
}

func newReserving(t *testing.T, opts Options) *reserving {
	t.Helper()
	if opts.Decider == nil {
		opts.Decider = modelLimits(t)
	}
	return &reserving{ratelimitdv1.NewReservationServiceClient(start(t, opts).conn), t, within(t)}
}

func (r *reserving) reserve(want ratelimitdv1.Code, req *ratelimitdv1.ReserveRequest) *ratelimitdv1.ReserveResponse {
	r.t.Helper()
	if req.Domain == "" {
		req.Domain = "llm"
	}
	got, err := r.Reserve(r.ctx, req)
	if err != nil || got.GetCode() != want || (got.GetId() != "") != (want == ratelimitdv1.Code_CODE_OK) || len(got.GetStatuses()) != len(req.Descriptors) {
		r.t.Fatalf("reserve %v: %v, %v", req, got, err)
	}
	return got
}

func (r *reserving) commit(req *ratelimitdv1.CommitRequest, want ratelimitdv1.Result, remaining ...uint64) {
	r.t.Helper()
	got, err := r.Commit(r.ctx, req)
	if err != nil || got.GetResult() != want || len(got.GetStatuses()) != len(remaining) {
		r.t.Fatalf("commit %v: %v, %v", req.GetActual(), got, err)
	}
	for i, n := range remaining {
		if s := got.GetStatuses()[i]; s.GetRemaining() != n {
			r.t.Errorf("commit %v: %v, want %d remaining", req.GetActual(), s, n)
		}
	}
}

const (
	codeOK   = ratelimitdv1.Code_CODE_OK
	codeOver = ratelimitdv1.Code_CODE_OVER_LIMIT
)

// The services' descriptions for reflection equal those of the generated code for clients.
func TestDescriptionOfOwnServices(t *testing.T) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(ownFiles, &set); err != nil || len(set.GetFile()) != 2 {
		t.Fatal(len(set.GetFile()), err)
	}
	for i, generated := range []protoreflect.FileDescriptor{ratelimitdv1.File_ratelimitd_v1_reservations_proto, ratelimitdv1.File_ratelimitd_v1_decisions_proto} {
		if want := protodesc.ToFileDescriptorProto(generated); !proto.Equal(set.GetFile()[i], want) {
			t.Errorf("%v, want %v: run make generate", set.GetFile()[i], want)
		}
		if _, err := protodesc.NewFile(set.GetFile()[i], protoregistry.GlobalFiles); err != nil {
			t.Error(err)
		}
	}
}

func TestReserveAndCommit(t *testing.T) {
	r := newReserving(t, Options{})
	before := time.Now()
	got := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Descriptors: []*ratelimitdv1.Descriptor{
		// 300.5
		descriptorOf("tokens", &ratelimitdv1.Amount{Units: map[string]uint64{"input": 100, "output": 50, "cached": 5}}),
		descriptorOf("calls", nil),
	}})
	tokens, calls := got.GetStatuses()[0], got.GetStatuses()[1]
	if tokens.GetReserved() != 301 || tokens.GetRemaining() != 699 || tokens.GetRule() != "llm.tokens" || tokens.GetLimit() != 1000 || tokens.GetResetAfter().AsDuration() <= 0 {
		t.Errorf("tokens: %v", tokens)
	}
	if calls.GetReserved() != 1 || calls.GetRemaining() != 2 {
		t.Errorf("calls: %v", calls)
	}
	if in := got.GetExpireTime().AsTime().Sub(before); in < 59*time.Second || in > 2*time.Minute {
		t.Errorf("it expires in %v", in)
	}
	progress := &ratelimitdv1.CommitRequest{Id: got.GetId(), Final: proto.Bool(false), Actual: []*ratelimitdv1.Amount{{Units: map[string]uint64{"input": 100, "output": 10}}, hitsOf(1)}}
	r.commit(progress, resultDone, 699, 2)
	final := &ratelimitdv1.CommitRequest{Id: got.GetId(), Actual: []*ratelimitdv1.Amount{{Units: map[string]uint64{"input": 100, "output": 30}}, hitsOf(1)}}
	r.commit(final, resultDone, 780, 2)
	r.commit(final, resultUnknown, 780, 2)

	again := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(100), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}})
	r.commit(&ratelimitdv1.CommitRequest{Id: again.GetId()}, resultDone, 680) // charges the reserved hits
	again = r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(100), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil), descriptorOf("tokens", hitsOf(50))}})
	// charges 10 for each
	r.commit(&ratelimitdv1.CommitRequest{Id: again.GetId(), Actual: []*ratelimitdv1.Amount{hitsOf(10)}}, resultDone, 660, 660)
}

func TestCancelAndExtend(t *testing.T) {
	r := newReserving(t, Options{})
	got := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(2), Ttl: durationpb.New(time.Second), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("calls", nil)}})
	extended, err := r.Extend(r.ctx, &ratelimitdv1.ExtendRequest{Id: got.GetId(), Ttl: durationpb.New(time.Hour)})
	if err != nil || extended.GetResult() != resultDone {
		t.Fatalf("%v, %v", extended, err)
	}
	if in := time.Until(extended.GetExpireTime().AsTime()); in < 9*time.Minute || in > 10*time.Minute {
		t.Errorf("it expires in %v; the rule allows 10 minutes", in)
	}
	over := r.reserve(codeOver, &ratelimitdv1.ReserveRequest{Amount: hitsOf(2), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("calls", nil)}})
	if s := over.GetStatuses()[0]; s.GetCode() != codeOver || s.GetRetryAfter().AsDuration() <= 0 || s.GetRemaining() != 1 || s.GetReserved() != 0 {
		t.Errorf("%v", s)
	}
	for _, want := range []ratelimitdv1.Result{resultDone, resultUnknown} {
		if cancelled, err := r.Cancel(r.ctx, &ratelimitdv1.CancelRequest{Id: got.GetId()}); err != nil || cancelled.GetResult() != want {
			t.Errorf("%v, %v, want %v", cancelled, err, want)
		}
	}
	if extended, err = r.Extend(r.ctx, &ratelimitdv1.ExtendRequest{Id: got.GetId()}); err != nil || extended.GetResult() != resultUnknown || extended.GetExpireTime() != nil {
		t.Errorf("%v, %v", extended, err)
	}
	r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(3), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("calls", nil)}})
}

func TestSmallerReservations(t *testing.T) {
	r := newReserving(t, Options{})
	tokens := []*ratelimitdv1.Descriptor{descriptorOf("tokens", hitsOf(800))}
	r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Descriptors: tokens})
	if got := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Descriptors: tokens, MinHits: 100}); got.GetStatuses()[0].GetReserved() != 200 {
		t.Errorf("%v", got)
	}
	r.reserve(codeOver, &ratelimitdv1.ReserveRequest{Descriptors: tokens, MinHits: 1})
	// Half of the limit is the largest reservation: a larger one never passes.
	half := []*ratelimitdv1.Descriptor{descriptorOf("half", hitsOf(51))}
	if got := r.reserve(codeOver, &ratelimitdv1.ReserveRequest{Descriptors: half}); got.GetStatuses()[0].RetryAfter != nil {
		t.Errorf("%v", got)
	}
	if got := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Descriptors: half, MinHits: 1}); got.GetStatuses()[0].GetReserved() != 50 {
		t.Errorf("%v", got)
	}
}

// Reserved hits count as used for plain requests.
func TestPlainRequestsRespectReservations(t *testing.T) {
	l := modelLimits(t)
	r := newReserving(t, Options{Decider: l})
	got := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(3), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("calls", nil)}})
	plain := &limiter.Request{Domain: "llm", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{{Key: "calls", Value: "alice"}}}}}
	var d limiter.Decision
	if err := l.Decide(r.ctx, time.Now(), plain, &d); err != nil || d.Code != limiter.OverLimit {
		t.Errorf("%v, %v", d.Code, err)
	}
	// the denied one counted
	r.commit(&ratelimitdv1.CommitRequest{Id: got.GetId(), Actual: []*ratelimitdv1.Amount{hitsOf(1)}}, resultDone, 1)
}

func TestErrorsOfReservations(t *testing.T) {
	r := newReserving(t, Options{Requests: Requests{MaxDescriptors: 2}})
	one := []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}
	id := r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Descriptors: []*ratelimitdv1.Descriptor{one[0], descriptorOf("calls", nil)}}).GetId()
	reserve := func(req *ratelimitdv1.ReserveRequest) error { _, err := r.Reserve(r.ctx, req); return err }
	commit := func(req *ratelimitdv1.CommitRequest) error { _, err := r.Commit(r.ctx, req); return err }
	_, cancel := r.Cancel(r.ctx, &ratelimitdv1.CancelRequest{Id: id[:len(id)-4] + "AAAA"})
	_, extend := r.Extend(r.ctx, &ratelimitdv1.ExtendRequest{Id: id, Ttl: durationpb.New(-1)})
	for name, c := range map[string]struct {
		err     error
		code    codes.Code
		message string
	}{
		"no domain":               {reserve(&ratelimitdv1.ReserveRequest{Descriptors: one}), codes.InvalidArgument, "domain must not be empty"},
		"no descriptors":          {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm"}), codes.InvalidArgument, "descriptor list must not be empty"},
		"too many descriptors":    {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{one[0], one[0], one[0]}}), codes.InvalidArgument, "more than 2"},
		"a negative ttl":          {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: one, Ttl: durationpb.New(-1)}), codes.InvalidArgument, "ttl"},
		"a rule without them":     {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("plain", nil)}}), codes.FailedPrecondition, "the rule llm.plain allows no reservations"},
		"unequal amounts":         {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm", MinHits: 1, Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", hitsOf(2)), descriptorOf("calls", hitsOf(1))}}), codes.InvalidArgument, "min_hits: "},
		"a misspelt kind":         {reserve(&ratelimitdv1.ReserveRequest{Domain: "llm", Amount: &ratelimitdv1.Amount{Units: map[string]uint64{"outptu": 1}}, Descriptors: one}), codes.InvalidArgument, `no weight for "outptu"`},
		"no id":                   {commit(&ratelimitdv1.CommitRequest{}), codes.InvalidArgument, "not the id of a reservation"},
		"an invented id":          {commit(&ratelimitdv1.CommitRequest{Id: "AAAA"}), codes.InvalidArgument, "not the id of a reservation"},
		"a changed id":            {cancel, codes.InvalidArgument, "not the id of a reservation"},
		"three amounts for two":   {commit(&ratelimitdv1.CommitRequest{Id: id, Actual: []*ratelimitdv1.Amount{{}, {}, {}}}), codes.InvalidArgument, "actual"},
		"extended by less than 0": {extend, codes.InvalidArgument, "ttl"},
	} {
		if status.Code(c.err) != c.code || !strings.Contains(status.Convert(c.err).Message(), c.message) {
			t.Errorf("%s: %v, want %v with %q", name, c.err, c.code, c.message)
		}
	}
	r.commit(&ratelimitdv1.CommitRequest{Id: id}, resultDone, 999, 2) // none of these calls changed anything
}

// A replica accepts the ids of another one with the same key. Without a key nothing is reserved.
func TestIDsOfOtherProcesses(t *testing.T) {
	l := modelLimits(t)
	var all [3]*reserving
	for i, secret := range []string{"a", "a", "b"} {
		ids := reservation.NewSigner()
		ids.SetKey(reservation.KeyFrom(secret))
		all[i] = newReserving(t, Options{Decider: l, Reservations: ids})
	}
	got := all[0].reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(100), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}})
	if _, err := all[2].Commit(all[2].ctx, &ratelimitdv1.CommitRequest{Id: got.GetId()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a process with another key: %v", err)
	}
	all[1].commit(&ratelimitdv1.CommitRequest{Id: got.GetId(), Actual: []*ratelimitdv1.Amount{hitsOf(1)}}, resultDone, 999)

	none := newReserving(t, Options{Decider: l, Reservations: reservation.NewSigner()})
	if _, err := none.Reserve(none.ctx, &ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a key: %v", err)
	}
	if _, err := none.Commit(none.ctx, &ratelimitdv1.CommitRequest{Id: got.GetId()}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a key: %v", err)
	}
}

// Without a key, requests that need no id are answered as usual, and nothing is reserved.
func TestWithoutTheKeyOfIDs(t *testing.T) {
	l := modelLimits(t)
	opts := Options{Decider: l, Reservations: reservation.NewSigner()}
	r := newReserving(t, opts)
	_, plain := r.Reserve(r.ctx, &ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("plain", nil)}})
	if status.Code(plain) != codes.FailedPrecondition || !strings.Contains(status.Convert(plain).Message(), "llm.plain") {
		t.Errorf("a rule without reservations: %v", plain)
	}
	conn := start(t, opts).conn
	if got, err := kuadrantCall(t, conn, "Reserve", kuadrantRequest("tokens")); err != nil || got[1] != uint64(limiter.OK) || got[2] != nil {
		t.Errorf("a check: %v, %v", got, err)
	}
	if _, err := kuadrantCall(t, conn, "Reserve", appendUint(kuadrantRequest("tokens"), 3, 900)); status.Code(err) != codes.Unavailable {
		t.Errorf("a reservation: %v", err)
	}
	newReserving(t, Options{Decider: l}).reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(1000), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}})
}

// An id that no call would accept is not issued, and nothing is reserved for it.
func TestTooLongForAnID(t *testing.T) {
	r := newReserving(t, Options{})
	of := func(entries, size int) *ratelimitdv1.ReserveRequest {
		d := descriptorOf("tokens", hitsOf(100))
		long := &ratelimitdv1.Descriptor{}
		for range entries {
			long.Entries = append(long.Entries, &ratelimitdv1.Entry{Key: "k", Value: strings.Repeat("v", size)})
		}
		return &ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{d, long}}
	}
	got := r.reserve(codeOK, of(13, 60_000))
	r.commit(&ratelimitdv1.CommitRequest{Id: got.GetId()}, resultDone, 900, 0)
	_, err := r.Reserve(r.ctx, of(14, 60_000))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), "has room for 786399") {
		t.Errorf("%v", err)
	}
	r.reserve(codeOK, &ratelimitdv1.ReserveRequest{Amount: hitsOf(900), Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}})
}

// If the store does not answer, on_error decides, and there is no id, because nothing is reserved.
func TestNoIDWithoutTheStore(t *testing.T) {
	r := newReserving(t, Options{Decider: decider(func(_ context.Context, _ time.Time, _ *limiter.Request, d *limiter.Decision) error {
		*d = limiter.Decision{Code: limiter.OK, Statuses: []limiter.Status{{Code: limiter.OK, Degraded: descriptor.OnErrorAllow}}}
		return nil
	})})
	got, err := r.Reserve(r.ctx, &ratelimitdv1.ReserveRequest{Domain: "llm", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("tokens", nil)}})
	if err != nil || got.GetCode() != codeOK || got.GetId() != "" || got.GetExpireTime() != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// kuadrantCall sends a message of Kuadrant's service as bytes, and returns the integer and text fields of the answer.
func kuadrantCall(t *testing.T, conn *grpc.ClientConn, method string, message []byte) (map[protowire.Number]any, error) {
	t.Helper()
	var answer []byte
	if err := conn.Invoke(within(t), "/"+kuadrantService+"/"+method, &message, &answer, grpc.ForceCodec(rawBytes{})); err != nil {
		return nil, err
	}
	fields := make(map[protowire.Number]any)
	for len(answer) > 0 {
		num, typ, n := protowire.ConsumeTag(answer)
		answer = answer[n:]
		switch typ {
		case protowire.VarintType:
			fields[num], n = protowire.ConsumeVarint(answer)
		default:
			var text []byte
			text, n = protowire.ConsumeBytes(answer)
			fields[num] = string(text)
		}
		answer = answer[n:]
	}
	return fields, nil
}

// kuadrantRequest is the common part of all requests: a domain and a descriptor.
func kuadrantRequest(key string) []byte {
	b := appendString(nil, 1, "llm")
	return appendNested(b, 2, func(b []byte) []byte {
		if key == "" {
			return b // the condition of the policy was false
		}
		return appendNested(b, 1, func(b []byte) []byte { return appendString(appendString(b, 1, key), 2, "alice") })
	})
}

func TestKuadrant(t *testing.T) {
	l := modelLimits(t)
	conn := start(t, Options{Decider: l}).conn
	call := func(method string, message []byte) map[protowire.Number]any {
		t.Helper()
		fields, err := kuadrantCall(t, conn, method, message)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		return fields
	}
	left := func(key string, want uint64) {
		t.Helper()
		var d limiter.Decision
		req := &limiter.Request{Domain: "llm", Descriptors: []limiter.Descriptor{{HasHits: true, Entries: []descriptor.Entry{{Key: key, Value: "alice"}}}}}
		if err := l.Decide(t.Context(), time.Now(), req, &d); err != nil || d.Statuses[0].Remaining != want {
			t.Errorf("%d are left of %s, want %d (%v)", d.Statuses[0].Remaining, key, want, err)
		}
	}
	const okCode, over = uint64(limiter.OK), uint64(limiter.OverLimit)

	for _, key := range []string{"plain", "calls"} {
		all := map[string]uint64{"plain": 10, "calls": 3}[key]
		for range 3 {
			if got := call("CheckRateLimit", appendUint(kuadrantRequest(key), 3, all)); got[1] != okCode {
				t.Errorf("%s: check: %v", key, got)
			}
		}
		left(key, all)
		if got := call("Report", appendUint(kuadrantRequest(key), 3, all+5)); got[1] != okCode {
			t.Errorf("%s: report: %v", key, got)
		}
		left(key, 0)
		if got := call("CheckRateLimit", kuadrantRequest(key)); got[1] != over {
			t.Errorf("%s: check of what is used up: %v", key, got)
		}
	}

	got := call("Reserve", appendDuration(appendUint(kuadrantRequest("tokens"), 3, 700), 4, time.Minute))
	id, _ := got[2].(string)
	if got[1] != okCode || id == "" {
		t.Fatalf("reserve: %v", got)
	}
	left("tokens", 300)
	if got := call("Reserve", appendUint(kuadrantRequest("tokens"), 3, 301)); got[1] != over || got[2] != nil {
		t.Errorf("reserve too much: %v", got)
	}
	commit := appendUint(appendString(kuadrantRequest("tokens"), 3, id), 4, 100)
	if got := call("Commit", commit); got[1] != uint64(1) {
		t.Errorf("commit: %v", got)
	}
	left("tokens", 900)
	if got := call("Commit", commit); got[1] != nil {
		t.Errorf("the same commit again: %v", got)
	}
	left("tokens", 900)

	// An amount of 0 is a check; the commit then has no id, and charges the used hits.
	if got := call("Reserve", kuadrantRequest("plain")); got[2] != nil {
		t.Errorf("reserve nothing: %v", got)
	}
	for _, id := range []string{"", "an id of another server"} {
		if got := call("Commit", appendUint(appendString(kuadrantRequest("tokens"), 3, id), 4, 100)); got[1] != nil {
			t.Errorf("commit without a reservation: %v", got)
		}
	}
	left("tokens", 700)

	// A policy whose conditions are false sends no entries, so nothing is limited.
	for _, method := range []string{"CheckRateLimit", "Report", "Reserve", "Commit"} {
		call(method, kuadrantRequest(""))
		call(method, appendString(nil, 1, "llm"))
	}
	if _, err := kuadrantCall(t, conn, "Reserve", appendUint(kuadrantRequest("plain"), 3, 1)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a rule without reservations: %v", err)
	}
	if _, err := kuadrantCall(t, conn, "Commit", []byte{0xff}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("malformed: %v", err)
	}
}

// FuzzReserve compares decoding with the generated code.
func FuzzReserve(f *testing.F) {
	for _, req := range []*ratelimitdv1.ReserveRequest{
		{},
		{Domain: "d", Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("k", nil), descriptorOf("", hitsOf(0))}, Amount: hitsOf(5), Ttl: durationpb.New(time.Minute + 1), MinHits: 2},
		{Descriptors: []*ratelimitdv1.Descriptor{descriptorOf("k", &ratelimitdv1.Amount{Hits: 1, Units: map[string]uint64{"a": 1, "b": 0}})}},
	} {
		data, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want ratelimitdv1.ReserveRequest
		wantErr := proto.Unmarshal(data, &want)
		var got limiter.Request
		var h limiter.Reservation
		d := decoder{data: data, text: string(data), bounds: unbounded}
		err := d.reserve(&got, &h)
		if err != nil && strings.Contains(err.Error(), "more than") {
			return // a bound that the generated code does not have
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, want %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if got.Domain != want.GetDomain() || h.Least != want.GetMinHits() || len(got.Descriptors) != len(want.GetDescriptors()) {
			t.Fatalf("%+v %+v, want %v", got, h, &want)
		}
		if ttl := want.GetTtl(); ttl.IsValid() && ttl.AsDuration() >= 0 && ttl.AsDuration() < maxTTL && h.TTL != ttl.AsDuration() {
			t.Errorf("ttl %v, want %v", h.TTL, ttl.AsDuration())
		}
		for i, w := range want.GetDescriptors() {
			amount := w.GetAmount()
			if amount == nil {
				amount = want.GetAmount()
			}
			if amount == nil {
				amount = hitsOf(1)
			}
			g := got.Descriptors[i]
			if g.Hits != amount.GetHits() || len(g.Amounts) != len(amount.GetUnits()) || len(g.Entries) != len(w.GetEntries()) {
				t.Fatalf("%+v, want %v and %v", g, w, amount)
			}
			for _, a := range g.Amounts {
				if n, ok := amount.GetUnits()[a.Name]; !ok || n != a.Units {
					t.Errorf("%+v, want %v", a, amount)
				}
			}
		}
	})
}

// A JSON client reserves and commits as Envoy does, by an id that it chooses.
func TestReservationsOverJSON(t *testing.T) {
	r := start(t, Options{Decider: modelLimits(t)})
	for _, c := range []struct {
		entry  string
		hits   int
		answer int
		says   string
	}{
		{"reserve_id", 700, 200, `"limitRemaining":300`},
		{"reserve_id", 301, 429, `"unit":"HOUR"},"durationUntilReset"`}, // limitRemaining is 0
		{"commit_id", 100, 200, `"limitRemaining":900`},
		{"reserve_id", 900, 200, `"statuses":[{"code":"OK"`},
	} {
		body := fmt.Sprintf(`{"domain": "llm", "descriptors": [{"entries": [{"key": "tokens", "value": "alice"}, {"key": %q, "value": "request 1"}], "hitsAddend": "%d"}]}`, c.entry, c.hits)
		code, _, answer := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(body))
		if code != c.answer || !strings.Contains(answer, c.says) {
			t.Errorf("%s of %d: %d %s, want %d %s", c.entry, c.hits, code, answer, c.answer, c.says)
		}
	}
}
