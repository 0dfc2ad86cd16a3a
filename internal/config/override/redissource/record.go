package redissource

import (
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
)

// maxRecord bounds a record in Redis, in bytes. Each change in the stream has two.
const maxRecord = 64 << 10

// body returns a record up to its version and the time of its change, which the script appends.
func body(o override.Override) ([]byte, error) {
	o.Version, o.Changed = 0, time.Time{}
	text := override.AppendJSON(nil, &o)
	if len(text) > maxRecord {
		return nil, fmt.Errorf("domain, rule, limit, entries and texts together: more than %d bytes", maxRecord)
	}
	return text[:len(text)-1], nil
}

// parse reads a record.
func parse(text string) (*override.Override, error) {
	const most = maxRecord + len(`,"version":"9223372036854775807","changed_at":"2026-03-01T12:00:00.000Z"`)
	if len(text) > most {
		return nil, fmt.Errorf("decode an override: more than %d bytes", most)
	}
	o, err := override.ReadJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("decode an override: %w", err)
	}
	return o, nil
}
