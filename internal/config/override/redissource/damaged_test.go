package redissource_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Somebody writes something else under the keys of the overrides. The last good ones stay active, and the log and a
// metric show it.
func TestDamagedKeys(t *testing.T) {
	r := redistest.Start(t)
	for name, command := range map[string][]any{
		"a version that is no number": {"HSET", "p:{overrides}:version", "n", "abc"},
		"a text for a version":        {"SET", "p:{overrides}:version", "x"},
		"a text for a stream":         {"SET", "p:{overrides}:changes", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := r.Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			p := start(t, r, "")
			p.write(t, set(of("d", "x"), 7))
			p.until(t, "the override", has(map[string]uint64{"d x": 7}))
			if err := r.Client(t).Do(t.Context(), command...).Err(); err != nil {
				t.Fatal(err)
			}
			redistest.Eventually(t, "the damage is reported", func(context.Context) error {
				if !strings.Contains(p.log.String(), "level=ERROR msg=\"the overrides in Redis are damaged") {
					return errors.New(p.log.String())
				}
				return nil
			})
			if up := p.metric(t, "ratelimitd_overrides_source_up"); up != 0 {
				t.Errorf("ratelimitd_overrides_source_up is %v", up)
			}
			if s, _ := p.current(); s.Len() != 1 {
				t.Errorf("%d overrides are in force", s.Len())
			}
		})
	}
}
