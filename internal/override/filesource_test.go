package override_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/override"
	"github.com/ratelimitd/ratelimitd/internal/servicetest"
)

// followed is a file source that runs.
type followed struct {
	*override.File
	path     string
	registry *prometheus.Registry
	sets     chan map[string]uint64 // of each set, the requests by the value of k
	log      servicetest.Log
}

func follow(t *testing.T, path string) *followed {
	t.Helper()
	f := &followed{path: path, registry: prometheus.NewRegistry(), sets: make(chan map[string]uint64, 100)}
	var err error
	if f.File, err = override.OpenFile(override.FileOptions{Path: path, Metrics: f.registry, Log: slog.New(slog.NewTextHandler(&f.log, nil))}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.Run(ctx, func(s *override.Set) {
			all := make(map[string]uint64)
			for i, n := range s.Each() {
				all[i.Entries[0].Value] = n.Requests
			}
			f.sets <- all
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return f
}

// until waits for a set.
func (f *followed) until(t *testing.T, want map[string]uint64) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case got := <-f.sets:
			if maps.Equal(got, want) {
				return
			}
		case <-late:
			t.Fatalf("there was no set %v\n%s", want, &f.log)
		}
	}
}

func (f *followed) up(t *testing.T, want int) {
	t.Helper()
	late := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	expected := fmt.Sprintf("# HELP ratelimitd_overrides_source_up 1 while the source of overrides can be read; 0: the last ones that were read stay in force.\n# TYPE ratelimitd_overrides_source_up gauge\nratelimitd_overrides_source_up %d\n", want)
	for {
		err := testutil.GatherAndCompare(f.registry, strings.NewReader(expected), "ratelimitd_overrides_source_up")
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(err)
		}
	}
}

func fileWith(t *testing.T, path string, pairs ...any) {
	t.Helper()
	text := "overrides:\n"
	for i := 0; i < len(pairs); i += 2 {
		text += fmt.Sprintf("- {domain: d, rule: d.k, entries: 'k=%v', requests_per_unit: %v}\n", pairs[i], pairs[i+1])
	}
	if len(pairs) == 0 {
		text = "overrides: []\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func editOf(value string, requests uint64) override.Edit {
	return override.Edit{Override: override.Override{
		Identity: override.Identity{Domain: "d", Rule: "d.k", Entries: []descriptor.Entry{{Key: "k", Value: value}}},
		Numbers:  override.Numbers{Kind: override.Replace, Requests: requests}, Reason: "why",
	}}
}

// A change of the file is noticed however it was made. A bad version is not used, and the log says where it is wrong.
func TestFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "overrides.yaml")
	fileWith(t, path, "a", 1)
	f := follow(t, path)
	f.until(t, map[string]uint64{"a": 1})
	f.up(t, 1)

	fileWith(t, path, "a", 1, "b", 2) // in place
	f.until(t, map[string]uint64{"a": 1, "b": 2})

	fileWith(t, path+".new", "b", 3)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	f.until(t, map[string]uint64{"b": 3})

	if err := os.WriteFile(path, []byte("overrides:\n- domain: d\n  ruel: d.k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.up(t, 0)
	if log := f.log.String(); !strings.Contains(log, "overrides.yaml:3:3:") || !strings.Contains(log, "the last ones stay in force") || strings.Count(log, "cannot be used") != 1 {
		t.Error(log)
	}
	if _, err := f.File.Write(t.Context(), "ann", []override.Edit{editOf("a", 1)}); err == nil || !strings.Contains(err.Error(), "has errors") {
		t.Errorf("a write over a file with errors: %v", err)
	}
	fileWith(t, path, "c", 4)
	f.until(t, map[string]uint64{"c": 4})
	f.up(t, 1)

	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	f.up(t, 0)
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	f.up(t, 1)
	if page, _, err := f.List(t.Context(), override.Query{}); err != nil || len(page) != 1 || page[0].Version == 0 {
		t.Errorf("%+v %v", page, err)
	}
	history, err := f.History(t.Context(), override.Query{})
	if err != nil || len(history) != 5 || history[0].Before == nil || history[0].After != nil || history[1].After.Requests != 4 {
		t.Errorf("%+v %v", history, err)
	}
}

// A ConfigMap swaps a link, and the API does not write to it.
func TestConfigMap(t *testing.T) {
	dir := t.TempDir()
	for n, value := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(n)), 0o700); err != nil {
			t.Fatal(err)
		}
		fileWith(t, filepath.Join(dir, fmt.Sprint(n), "overrides.yaml"), value, 5)
	}
	link := func(n string) {
		t.Helper()
		if err := errors.Join(os.Symlink(n, filepath.Join(dir, "..tmp")), os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	link("0")
	path := filepath.Join(dir, "overrides.yaml")
	if err := os.Symlink("..data/overrides.yaml", path); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	f.until(t, map[string]uint64{"a": 5})
	link("1")
	f.until(t, map[string]uint64{"b": 5})
	if _, err := f.File.Write(t.Context(), "ann", []override.Edit{editOf("a", 1)}); !errors.Is(err, override.ErrReadOnly) {
		t.Error(err)
	}
}

// A write is in the file, and in force, as a whole or not at all.
func TestFileIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	fileWith(t, path, "a", 1, "b", 2)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	f.until(t, map[string]uint64{"a": 1, "b": 2})
	version := func(value string) *int64 {
		t.Helper()
		page, _, err := f.List(t.Context(), override.Query{Where: map[string]string{"k": value}})
		if err != nil || len(page) != 1 {
			t.Fatalf("%+v %v", page, err)
		}
		return &page[0].Version
	}
	seen := version("a")
	edit, removal := editOf("a", 50), editOf("b", 0)
	edit.Expect, removal.Remove, removal.Expect = seen, true, version("b")
	written, err := f.File.Write(t.Context(), "ann", []override.Edit{edit, removal, editOf("new <&\x1b[0m", 7)})
	if err != nil || len(written) != 3 || written[0].Author != "ann" || written[0].Version != *version("a") || *version("a") == *seen {
		t.Fatalf("%+v %v", written, err)
	}
	want := map[string]uint64{"a": 50, "new <&\x1b[0m": 7}
	f.until(t, want)
	follow(t, path).until(t, want)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}

	for name, expected := range map[string]int64{"it has changed": *seen, "there is one": 0} {
		edit := editOf("a", 60)
		edit.Expect = &expected
		_, err := f.File.Write(t.Context(), "", []override.Edit{editOf("other", 1), edit})
		if conflict, ok := errors.AsType[*override.ConflictError](err); !ok || conflict.Found != *version("a") || !reflect.DeepEqual(conflict.Identity, edit.Identity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fileWith(t, path, "hand", 9) // nothing is lost if it was not noticed yet
	if _, err := f.File.Write(t.Context(), "", []override.Edit{editOf("a", 1)}); err != nil {
		t.Fatal(err)
	}
	f.until(t, map[string]uint64{"hand": 9, "a": 1})
	if _, err := f.File.Write(t.Context(), "", []override.Edit{editOf("\xff", 1)}); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Error(err)
	}
	history, err := f.History(t.Context(), override.Query{Limit: 1, After: "4"})
	if err != nil || len(history) != 1 || history[0].Version != 3 || history[0].Author != "ann" || history[0].After.Requests != 7 {
		t.Errorf("%+v %v", history, err)
	}
}

func TestFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("overrides: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{bad: "bad.yaml:1:12:", filepath.Join(dir, "none"): "no such file", dir: "is a directory"} {
		if _, err := override.OpenFile(override.FileOptions{Path: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFilePages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	var pairs []any
	for n := range 250 {
		pairs = append(pairs, fmt.Sprintf("%03d", 249-n), n)
	}
	fileWith(t, path, pairs...)
	f := follow(t, path)
	var seen []string
	for q := (override.Query{Domain: "d", Rule: "d.k"}); ; {
		page, next, err := f.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			seen = append(seen, o.Entries[0].Value)
		}
		if q.After = next; next == "" {
			break
		}
	}
	for n, value := range seen {
		if value != fmt.Sprintf("%03d", n) {
			t.Fatalf("%s at place %d", value, n)
		}
	}
	if len(seen) != 250 {
		t.Errorf("%d overrides", len(seen))
	}
	if _, _, err := f.List(t.Context(), override.Query{After: "!"}); !errors.Is(err, override.ErrPage) {
		t.Error(err)
	}
}

// Processes that share a file may write it at the same moment: no change is lost.
func TestOneFileOfSeveralProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	fileWith(t, path)
	var wg sync.WaitGroup
	const processes, each = 4, 10
	for p := range processes {
		f, err := override.OpenFile(override.FileOptions{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for n := range each {
				if _, err := f.Write(t.Context(), "", []override.Edit{editOf(fmt.Sprint(p, "-", n), 1)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if all, errs := override.ReadFile(path, data); len(all) != processes*each || len(errs) > 0 {
		t.Errorf("%d of %d overrides, %v", len(all), processes*each, errs)
	}
}

// A process that hangs while it writes the file holds up writes for a bounded time, and nothing else.
func TestWriteWaitsForAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	fileWith(t, path, "a", 1)
	f := follow(t, path)
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := f.File.Write(ctx, "", []override.Edit{editOf("b", 2)}); err == nil || !strings.Contains(err.Error(), "is being changed: try again") {
		t.Error(err)
	}
	written := make(chan error)
	go func() {
		_, err := f.File.Write(t.Context(), "", []override.Edit{editOf("b", 2)})
		written <- err
	}()
	fileWith(t, path, "a", 3)
	f.until(t, map[string]uint64{"a": 3})
	if err := errors.Join(folder.Close(), <-written); err != nil {
		t.Error(err)
	}
	f.until(t, map[string]uint64{"a": 3, "b": 2})
}

// What people have written beside the overrides stays when the API writes: comments, order, and how values are written.
func TestCommentsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	const was = `# Who has other numbers, and why.
# Ask ann.

overrides:
  # large customers
  - domain: d          # the domain
    rule: d.k
    entries: 'k=a'     # acme
    # agreed on the phone
    requests_per_unit: 0x10 # 16
    reason: "because"
  # next to go
  - {domain: d, rule: d.k, entries: [k: b], factor: 1.50}   # flow
  - domain: d
    rule: d.k
    entries: k=c
    blocked: true
    # until they pay
# the end
`
	if err := os.WriteFile(path, []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	lift := editOf("c", 0)
	lift.Numbers = override.Numbers{Kind: override.Unlimited}
	gone := editOf("b", 0)
	gone.Remove = true
	if _, err := f.File.Write(t.Context(), "bob", []override.Edit{editOf("new", 7), gone, lift}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = `# Who has other numbers, and why.
# Ask ann.

overrides:
  # large customers
  - domain: d # the domain
    rule: d.k
    entries: 'k=a' # acme
    # agreed on the phone
    requests_per_unit: 0x10 # 16
    reason: "because"
  - domain: d
    rule: d.k
    entries: k=c
    unlimited: true
    reason: why
    author: bob
    changed_at: TIME
    # until they pay
  - domain: d
    rule: d.k
    entries: k=new
    requests_per_unit: 7
    reason: why
    author: bob
    changed_at: TIME
# the end
`
	if got := regexp.MustCompile(`(changed_at: )\S+`).ReplaceAllString(string(data), "${1}TIME"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	// Where an alias leads from one override to another, what they say matters more than how.
	const aliased = "overrides:\n- &a {domain: d, rule: d.k, entries: k=a, blocked: true}\n- {<<: *a, entries: k=b} # like a\n"
	if err := os.WriteFile(path, []byte(aliased), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.File.Write(t.Context(), "bob", []override.Edit{editOf("a", 5)}); err != nil {
		t.Fatal(err)
	}
	page, _, err := f.List(t.Context(), override.Query{})
	if err != nil || len(page) != 2 || page[0].Requests != 5 || page[1].Kind != override.Blocked {
		t.Errorf("%+v %v", page, err)
	}
}
