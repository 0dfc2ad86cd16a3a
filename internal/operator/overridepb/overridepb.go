package overridepb

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Message returns an override as a message; nil for nil.
func Message(o *override.Override) *adminv1.Override {
	if o == nil {
		return nil
	}
	m := &adminv1.Override{
		Domain: o.Domain, Rule: o.Rule, Limit: o.Limit, Burst: o.Burst, Unlimited: o.Kind == override.Unlimited,
		Blocked:   o.Kind == override.Blocked,
		NotBefore: timestamp(o.NotBefore), ExpiresAt: timestamp(o.ExpiresAt), Reason: o.Reason, Author: o.Author,
		Version: o.Version,
	}
	for _, e := range o.Entries {
		m.Entries = append(m.Entries, &adminv1.Entry{Key: e.Key, Value: e.Value})
	}
	switch o.Kind {
	case override.Replace:
		m.RequestsPerUnit = proto.Uint64(o.Requests)
	case override.Scale:
		m.Factor = float64(o.Requests) / override.One
	}
	if !o.Changed.IsZero() {
		m.ChangedAt = timestamppb.New(o.Changed)
	}
	return m
}

// timestamp returns a time in seconds since the Unix epoch; nil for 0.
func timestamp(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: at}
}

// Identity returns only the identity of an override.
func Identity(m *adminv1.Override) (override.Identity, error) {
	i := override.Identity{Domain: m.GetDomain(), Rule: m.GetRule(), Limit: m.GetLimit()}
	if len(m.GetEntries()) > override.MaxEntries {
		return i, fmt.Errorf("entries: more than %d", override.MaxEntries)
	}
	for _, e := range m.GetEntries() {
		i.Entries = append(i.Entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	return i, nil
}

// Read reads a message. Override.Validate checks the rest.
func Read(m *adminv1.Override) (*override.Override, error) {
	if m == nil {
		m = new(adminv1.Override)
	}
	i, err := Identity(m)
	if err != nil {
		return nil, err
	}
	o := &override.Override{Identity: i, Reason: m.GetReason(), Author: m.GetAuthor(), Version: m.GetVersion()}
	if err := o.Choose(m.RequestsPerUnit, m.GetFactor(), m.GetUnlimited(), m.GetBlocked()); err != nil { //nolint:protogetter // whether it is there
		return nil, err //nolint:wrapcheck // it is complete
	}
	o.Burst = m.GetBurst()
	for _, t := range []struct {
		name string
		from *timestamppb.Timestamp
		to   *int64
	}{{"not_before", m.GetNotBefore(), &o.NotBefore}, {"expires_at", m.GetExpiresAt(), &o.ExpiresAt}} {
		if t.from == nil {
			continue
		}
		if *t.to, err = override.Second(t.from.AsTime()); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	if at := m.GetChangedAt(); at != nil {
		o.Changed = at.AsTime()
	}
	return o, nil
}

// Words describes the numbers of a message, and when they apply.
func Words(m *adminv1.Override) string {
	if m == nil {
		return "none"
	}
	o, err := Read(m)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return o.Words()
}
