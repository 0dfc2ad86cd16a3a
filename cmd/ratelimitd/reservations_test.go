package main

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

const reservableRules = `
domain: d
descriptors:
  - key: k
    reservations: true
    rate_limit: {unit: day, requests_per_unit: 5}
`

// Processes with the same key accept each other's ids. Without a key, processes that share a Redis accept each other's
// ids.
func TestReservationKeys(t *testing.T) {
	rules := rulesOf(t, reservableRules)
	of := func(env map[string]string) ratelimitdv1.ReservationServiceClient {
		t.Helper()
		i := begin(t, env, "--rules", rules)
		if i.err != nil {
			t.Fatal(i.err)
		}
		return ratelimitdv1.NewReservationServiceClient(dial(t, i.grpc()))
	}
	r := redistest.Start(t)
	secret := map[string]string{"RATELIMITD_RESERVATION_KEY": "0123456789abcdef"}
	redis := map[string]string{"REDIS_URL": r.Addr, "CACHE_KEY_PREFIX": "p:"}
	for name, c := range map[string]struct {
		a, b map[string]string
		code codes.Code
	}{
		"the same key":  {secret, secret, codes.OK},
		"random keys":   {nil, nil, codes.InvalidArgument},
		"another key":   {secret, map[string]string{"RATELIMITD_RESERVATION_KEY": "fedcba9876543210"}, codes.InvalidArgument},
		"a Redis":       {redis, redis, codes.OK},
		"another Redis": {redis, map[string]string{"REDIS_URL": redistest.Start(t).Addr, "CACHE_KEY_PREFIX": "p:"}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := of(c.a), of(c.b)
			var got *ratelimitdv1.ReserveResponse
			until(t, "the key is known", func() bool {
				var err error
				got, err = a.Reserve(t.Context(), &ratelimitdv1.ReserveRequest{Domain: "d", Descriptors: []*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: "k", Value: name}}}}})
				return err == nil
			})
			if got.GetCode() != ratelimitdv1.Code_CODE_OK || got.GetId() == "" {
				t.Fatalf("%v", got)
			}
			until(t, "the answer of the other process", func() bool {
				_, err := b.Commit(t.Context(), &ratelimitdv1.CommitRequest{Id: got.GetId()})
				return status.Code(err) == c.code
			})
		})
	}
	if n, err := r.Client(t).Exists(t.Context(), "p:{reservations}:key").Result(); n != 1 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}
