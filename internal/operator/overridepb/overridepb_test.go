package overridepb

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest" // reproducible in CI
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// draw draws a valid override.
func draw(t *rapid.T) *override.Override {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a", "\x00\b\x1f\x7f\"\\/", "\u2028\u0085\ufeff\ufffd", "<&>", "鍵🔑"}))
	o := &override.Override{
		Identity: override.Identity{Domain: "d" + text.Draw(t, "domain"), Rule: "r" + text.Draw(t, "rule"), Limit: text.Draw(t, "limit")},
		Reason:   text.Draw(t, "reason"), Author: text.Draw(t, "author"), Version: rapid.Int64Min(0).Draw(t, "version"),
	}
	for range rapid.IntRange(1, 3).Draw(t, "entries") {
		o.Entries = append(o.Entries, descriptor.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
	}
	switch o.Kind = rapid.SampledFrom([]override.Kind{override.Replace, override.Scale, override.Unlimited, override.Blocked}).Draw(t, "kind"); o.Kind {
	case override.Replace:
		o.Requests, o.Burst = rapid.Uint64Max(descriptor.MaxRequests).Draw(t, "requests"), rapid.Uint64Max(descriptor.MaxRequests).Draw(t, "burst")
	case override.Scale:
		o.Requests = rapid.Uint64Range(1, override.MaxFactor*override.One).Draw(t, "factor")
	}
	const last = 253_402_300_799 // second of the year 9999
	o.NotBefore = rapid.Int64Range(0, last-1).Draw(t, "not before")
	if rapid.Bool().Draw(t, "expires") {
		o.ExpiresAt = rapid.Int64Range(o.NotBefore+1, last).Draw(t, "end")
	}
	if rapid.Bool().Draw(t, "changed") {
		ns := rapid.SampledFrom([]int64{0, 1, 1000, 120_000_000, 999_999_999}).Draw(t, "ns")
		o.Changed = time.Unix(rapid.Int64Range(-62_135_596_799, last).Draw(t, "at"), ns).UTC()
	}
	return o
}

// An override has one form as JSON. Redis and files contain the same bytes that protojson writes for the message, and
// each side reads the other's.
func TestOneForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := draw(t)
		if o.Validate() != nil {
			return // a text is too long
		}
		m := Message(o)
		byProto, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer // without the blanks that protojson varies
		if err := json.Compact(&want, byProto); err != nil {
			t.Fatal(err)
		}
		text := override.AppendJSON(nil, o)
		if diff := cmp.Diff(want.String(), string(text)); diff != "" {
			t.Fatal(diff)
		}
		var back adminv1.Override
		if err := protojson.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, &back, protocmp.Transform()); diff != "" {
			t.Fatal(diff)
		}
		// the form that commands show
		all, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true, Multiline: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func() (*override.Override, error){
			"the message": func() (*override.Override, error) { return Read(m) },
			"protojson":   func() (*override.Override, error) { return override.ReadJSON(byProto) },
			"all fields":  func() (*override.Override, error) { return override.ReadJSON(all) },
		} {
			got, err := read()
			if diff := cmp.Diff(o, got); diff != "" || err != nil {
				t.Fatalf("%s: %v\n%s\n%s", name, err, diff, all)
			}
		}
	})
}

// Every field of the message is part of the form.
func TestEveryFieldIsRead(t *testing.T) {
	for i := range (&adminv1.Override{}).ProtoReflect().Descriptor().Fields().Len() {
		name := string((&adminv1.Override{}).ProtoReflect().Descriptor().Fields().Get(i).Name())
		text := `{"domain":"d","rule":"r","entries":[{"key":"k"}],"blocked":true}`
		if !bytes.Contains([]byte(text), []byte(name)) {
			text = text[:len(text)-1] + `,"` + name + `":null}`
		}
		if _, err := override.ReadJSON([]byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkForm compares the cost of the form, by hand and with libraries.
func BenchmarkForm(b *testing.B) {
	o := &override.Override{
		Identity: override.Identity{Domain: "api", Rule: "api.tenant.endpoint", Entries: []descriptor.Entry{{Key: "tenant", Value: "customer-00012345"}, {Key: "endpoint", Value: "/v1/messages"}}},
		Numbers:  override.Numbers{Kind: override.Replace, Requests: 12345, ExpiresAt: 1 << 32}, Reason: "a larger contract", Author: "ann", Version: 12346, Changed: time.UnixMilli(1_700_000_000_123).UTC(),
	}
	text := override.AppendJSON(nil, o)
	for name, step := range map[string]func() error{
		"write": func() error { text = override.AppendJSON(text[:0], o); return nil },
		"write with protojson": func() error {
			_, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(Message(o))
			return err
		},
		"read": func() error { _, err := override.ReadJSON(text); return err },
		"read with encoding/json": func() error {
			var form struct {
				Domain, Rule, Limit, Reason, Author string
				Entries                             []struct{ Key, Value string }
				Requests                            json.Number `json:"requests_per_unit"`
				Burst, Version                      json.Number
				Factor                              float64
				Unlimited, Blocked                  bool
				NotBefore                           string `json:"not_before"`
				ExpiresAt                           string `json:"expires_at"`
				ChangedAt                           string `json:"changed_at"`
			}
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			return d.Decode(&form)
		},
		"read with protojson": func() error {
			var m adminv1.Override
			if err := protojson.Unmarshal(text, &m); err != nil {
				return err
			}
			_, err := Read(&m)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := step(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
