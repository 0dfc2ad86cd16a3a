package override_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/override"
	"github.com/ratelimitd/ratelimitd/internal/servicetest"
)

// An override that ended a day ago is removed from the file, and history and log say so. One that ended later stays, and so does one that was
// prolonged.
func TestSweepOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	const text = `overrides:
# for the fair
- {domain: d, rule: d.k, entries: k=old, blocked: true, expires_at: 2026-03-01T12:00:00Z}
- {domain: d, rule: d.k, entries: k=prolonged, blocked: true, expires_at: 2026-03-01T12:00:00Z}
- {domain: d, rule: d.k, entries: k=later, blocked: true, expires_at: 2026-03-01T12:00:01Z} # a second
- {domain: d, rule: d.k, entries: k=endless, blocked: true}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	all := map[string]uint64{"old": 0, "prolonged": 0, "later": 0, "endless": 0}
	f.until(t, all)
	prolonged := editOf("prolonged", 0)
	prolonged.Numbers = override.Numbers{Kind: override.Blocked, ExpiresAt: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}

	var log servicetest.Log
	stale := setOf(t, text)
	s := override.Sweeper{Source: f.File, InForce: func() *override.Set { return stale }, Log: slog.New(slog.NewTextHandler(&log, nil))}
	sweep := func(at string, want int) {
		t.Helper()
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := s.Sweep(t.Context(), now); err != nil || n != want {
			t.Errorf("%s: %d were removed, %v, want %d", at, n, err, want)
		}
	}
	sweep("2026-03-02T11:59:59Z", 0)
	if _, err := f.File.Write(t.Context(), "ann", []override.Edit{prolonged}); err != nil {
		t.Fatal(err)
	}
	sweep("2026-03-02T12:00:00Z", 1)
	sweep("2026-03-02T12:00:00Z", 0)
	f.until(t, map[string]uint64{"prolonged": 0, "later": 0, "endless": 0})
	if data, err := os.ReadFile(path); err != nil || strings.Contains(string(data), "fair") || !strings.Contains(string(data), "# a second") {
		t.Errorf("%s %v", data, err)
	}
	history, err := f.History(t.Context(), override.Query{Limit: 1})
	if err != nil || len(history) != 1 || history[0].After != nil || history[0].Author != "ratelimitd" || history[0].Reason != "it ended at 2026-03-01T12:00:00Z" {
		t.Errorf("%+v %v", history, err)
	}
	lines := log.With("change of an override")
	if want := `by=ratelimitd domain=d rule=d.k entries="k=old" before="blocked until 2026-03-01T12:00:00Z" after=none reason="it ended at 2026-03-01T12:00:00Z"`; len(lines) != 1 || !strings.Contains(lines[0], want) {
		t.Errorf("%s\nwant %s", &log, want)
	}

	link := path + ".link" // as in a ConfigMap
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s.Source = follow(t, link).File
	if _, err := s.Sweep(t.Context(), time.Date(2026, 3, 3, 0, 0, 0, 0, time.UTC)); !errors.Is(err, override.ErrReadOnly) {
		t.Error(err)
	}
}

// The service sweeps once a minute. It says once that it cannot, and nothing about a file that others write.
func TestSweeperRuns(t *testing.T) {
	const text = "overrides:\n- {domain: d, rule: d.k, entries: k=a, blocked: true, expires_at: 1999-03-01T12:00:00Z}\n"
	folder := t.TempDir()
	path, link := filepath.Join(folder, "overrides.yaml"), filepath.Join(folder, "link")
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // in the year 2000
		set := setOf(t, text)
		var log servicetest.Log
		run := func(path string) {
			source, err := override.OpenFile(override.FileOptions{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			s := override.Sweeper{Source: source, InForce: func() *override.Set { return set }, Log: slog.New(slog.NewTextHandler(&log, nil))}
			go func() { _ = s.Run(t.Context()) }()
		}
		run(link)
		time.Sleep(2*time.Minute + time.Second) //nolint:forbidigo // virtual time
		if text := log.String(); text != "" {
			t.Error(text)
		}
		run(path)
		time.Sleep(time.Minute + time.Second) //nolint:forbidigo // virtual time
		if data, err := os.ReadFile(path); err != nil || string(data) != "overrides: []\n" {
			t.Errorf("%s %v", data, err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		run(path)
		if err := os.WriteFile(path, []byte("overrides: 5\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Minute + time.Second) //nolint:forbidigo // virtual time
		if lines := log.With("overrides that have ended cannot be removed"); len(lines) != 1 || !strings.Contains(lines[0], "the file of overrides has errors") {
			t.Errorf("%s", &log)
		}
	})
}

func setOf(t *testing.T, text string) *override.Set {
	t.Helper()
	records, errs := override.ReadPlaced("o.yaml", []byte(text))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return override.SetOf(records)
}
