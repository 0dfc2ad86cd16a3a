package redissource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxRecord bounds a record in Redis, in bytes. Each change in the stream has two.
const maxRecord = 64 << 10

// record is an override as Redis keeps it, in JSON. The script writes version and changed, which come first.
type record struct {
	Version int64 `json:"version,omitempty"`
	Changed int64 `json:"changed,omitempty"` // milliseconds since the Unix epoch

	Domain    string      `json:"domain"`
	Rule      string      `json:"rule"`
	Limit     string      `json:"limit,omitempty"`
	Entries   [][2]string `json:"entries"`
	Kind      string      `json:"kind"`
	Requests  uint64      `json:"requests,omitempty"`
	Burst     uint64      `json:"burst,omitempty"`
	NotBefore int64       `json:"not_before,omitempty"` // seconds since the Unix epoch, as the next one
	ExpiresAt int64       `json:"expires_at,omitempty"`
	Reason    string      `json:"reason,omitempty"`
	Author    string      `json:"author,omitempty"`
}

var (
	kindNames = map[override.Kind]string{
		override.Replace: "replace", override.Scale: "scale", override.Unlimited: "unlimited", override.Blocked: "blocked",
	}
	kinds = map[string]override.Kind{
		"replace": override.Replace, "scale": override.Scale, "unlimited": override.Unlimited, "blocked": override.Blocked,
	}
)

// body returns a record without its opening brace, version and time of change, which the script puts in front.
func body(o *override.Override) ([]byte, error) {
	r := record{
		Domain: o.Domain, Rule: o.Rule, Limit: o.Limit, Entries: make([][2]string, len(o.Entries)), Kind: kindNames[o.Kind],
		Requests: o.Requests, Burst: o.Burst, NotBefore: o.NotBefore, ExpiresAt: o.ExpiresAt, Reason: o.Reason, Author: o.Author,
	}
	for i, e := range o.Entries {
		r.Entries[i] = [2]string{e.Key, e.Value}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&r); err != nil {
		return nil, fmt.Errorf("encode an override: %w", err)
	}
	if b.Len() > maxRecord {
		return nil, fmt.Errorf("domain, rule, limit, entries and texts together: more than %d bytes", maxRecord)
	}
	return bytes.TrimSuffix(b.Bytes()[1:], []byte("\n")), nil
}

var errUnknownKind = errors.New("its kind is unknown")

// parse reads a record.
func parse(text string) (*override.Override, error) {
	const most = maxRecord + len(`{"version":,"changed":,`) + 2*len("9223372036854775807")
	if len(text) > most {
		return nil, fmt.Errorf("decode an override: more than %d bytes", most)
	}
	var r record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("decode an override: %w", err)
	}
	o := &override.Override{
		Identity: override.Identity{Domain: r.Domain, Rule: r.Rule, Limit: r.Limit, Entries: make([]descriptor.Entry, len(r.Entries))},
		Numbers:  override.Numbers{Kind: kinds[r.Kind], Requests: r.Requests, Burst: r.Burst, NotBefore: r.NotBefore, ExpiresAt: r.ExpiresAt},
		Reason:   r.Reason, Author: r.Author, Version: r.Version,
	}
	if r.Changed != 0 {
		o.Changed = time.UnixMilli(r.Changed).UTC()
	}
	for i, e := range r.Entries {
		o.Entries[i] = descriptor.Entry{Key: e[0], Value: e[1]}
	}
	if o.Kind == 0 {
		return nil, errUnknownKind
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("check an override: %w", err)
	}
	return o, nil
}
