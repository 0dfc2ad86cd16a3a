package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// A request is encoded to the same bytes as the generated message with the same content. So two requests with the same
// bytes are the same request.
func TestWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", "\x00", "\n\x01a\x12\x01b", strings.Repeat("x", 200)}))
		amount := rapid.Custom(func(t *rapid.T) limits.Amount {
			return limits.Amount{
				Hits:  rapid.SampledFrom([]uint64{0, 1, 2, 127, 128, 1 << 40}).Draw(t, "hits"),
				Units: rapid.MapOfN(text, rapid.Uint64(), 0, 3).Draw(t, "units"),
				Peek:  rapid.Bool().Draw(t, "peek"),
			}
		})
		r := &limits.Request{Domain: text.Draw(t, "domain"), Amount: amount.Draw(t, "amount")}
		want := &ratelimitdv1.DecideRequest{Domain: r.Domain, Amount: message(&r.Amount)}
		for range rapid.IntRange(0, 3).Draw(t, "descriptors") {
			var d limits.Descriptor
			m := &ratelimitdv1.Descriptor{}
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				e := limits.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")}
				d.Entries = append(d.Entries, e)
				m.Entries = append(m.Entries, &ratelimitdv1.Entry{Key: e.Key, Value: e.Value})
			}
			if rapid.Bool().Draw(t, "own amount") {
				a := amount.Draw(t, "amount")
				d.Amount, m.Amount = &a, message(&a)
			}
			r.Descriptors = append(r.Descriptors, d)
			want.Descriptors = append(want.Descriptors, m)
		}
		wire, err := appendRequest([]byte("before"), r)
		if err != nil {
			t.Fatal(err)
		}
		var got ratelimitdv1.DecideRequest
		if err := proto.Unmarshal(wire[len("before"):], &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		again, _ := appendRequest(nil, r)
		if string(again) != string(wire[len("before"):]) {
			t.Error("the same request has other bytes")
		}
	})
}

// message is an amount as the service gets it.
func message(a *limits.Amount) *ratelimitdv1.Amount {
	switch {
	case a.Peek:
		return &ratelimitdv1.Amount{}
	case a.Hits == 0 && len(a.Units) == 0:
		return &ratelimitdv1.Amount{Hits: 1}
	default:
		return &ratelimitdv1.Amount{Hits: a.Hits, Units: a.Units}
	}
}

// A request that the service would reject in a way that concerns others is rejected by the client.
func TestRequestsThatAreNotSent(t *testing.T) {
	units := limits.NewRequest("d", "k", "v")
	units.Amount.Units = map[string]uint64{"\xff": 1}
	for name, r := range map[string]*limits.Request{
		"domain": limits.NewRequest("\xff", "k", "v"), "key": limits.NewRequest("d", "\xff", "v"), "value": limits.NewRequest("d", "k", "\xff"), "units": units,
		"size": limits.NewRequest("d", "k", strings.Repeat("x", 1<<20)),
	} {
		if _, err := appendRequest(nil, r); !errors.Is(err, limits.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
