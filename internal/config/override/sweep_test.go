package override_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// unwritable is a source that several replicas share and none can write.
type unwritable struct{ *override.File }

func (unwritable) Turn(context.Context, time.Duration) (bool, error) { return true, nil }

// The service sweeps once a minute, and logs once that it cannot.
func TestSweeperRuns(t *testing.T) {
	const text = "overrides:\n- {domain: d, rule: d.k, entries: k=a, blocked: true, expires_at: 1999-03-01T12:00:00Z}\n"
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // the clock starts in the year 2000
		set := setOf(t, text)
		var log servicetest.Log
		source, err := override.OpenFile(override.FileOptions{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		s := override.Sweeper{Source: unwritable{source}, InForce: func() *override.Set { return set }, Log: slog.New(slog.NewTextHandler(&log, nil))}
		go func() { _ = s.Run(t.Context()) }()
		time.Sleep(3*time.Minute + time.Second) //nolint:forbidigo // virtual time
		if lines := log.With("overrides that have ended cannot be removed"); len(lines) != 1 {
			t.Errorf("%s", &log)
		}
	})
}

func setOf(t *testing.T, text string) *override.Set {
	t.Helper()
	records, errs := override.ReadFile("o.yaml", []byte(text))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return override.SetOf(records)
}
