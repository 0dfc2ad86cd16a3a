package override_test

import (
	"bytes"
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
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// followed is a file source that runs.
type followed struct {
	*override.File
	path     string
	registry *prometheus.Registry
	sets     chan map[string]uint64 // requests by the value of k, for each set
	log      servicetest.Log
}

func follow(t *testing.T, path string) *followed {
	t.Helper()
	f := &followed{path: path, registry: prometheus.NewRegistry(), sets: make(chan map[string]uint64, 100)}
	var err error
	if f.File, err = override.OpenFile(override.FileOptions{Path: path, Metrics: prom.With(f.registry), Log: slog.New(slog.NewTextHandler(&f.log, nil))}); err != nil {
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
	expected := fmt.Sprintf("# HELP ratelimitd_overrides_source_up 1 while overrides can be read.\n# TYPE ratelimitd_overrides_source_up gauge\nratelimitd_overrides_source_up %d\n", want)
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

// Every kind of change of the file is noticed. A bad version is not used, and the log gives the position of the error.
func TestFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "overrides.yaml")
	fileWith(t, path, "a", 1)
	f := follow(t, path)
	f.until(t, map[string]uint64{"a": 1})
	f.up(t, 1)

	fileWith(t, path, "a", 1, "b", 2) // a write in place
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
	if log := f.log.String(); !strings.Contains(log, "overrides.yaml:3:3:") || !strings.Contains(log, "the previous overrides stay active") || strings.Count(log, "cannot be used") != 1 {
		t.Error(log)
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
	if _, err := f.History(t.Context(), override.Query{}); !errors.Is(err, override.ErrReadOnly) {
		t.Errorf("the history of a file: %v", err)
	}
}

// A ConfigMap swaps a link.
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
}

// A write changes nothing. Its error quotes the text to write in the file, and the line. That text is an override like
// the requested one.
func TestFileIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "overrides.yaml")
	fileWith(t, path, "a", 1, "b", 2)
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := override.OpenFile(override.FileOptions{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	removal, nothing := editOf("b", 0), editOf("none", 0)
	removal.Remove, nothing.Remove = true, true
	written, err := f.Write(t.Context(), "ann", []override.Edit{editOf("a", 50), removal, nothing, editOf("new <&\x1b[0m", 7)})
	const item = "\n  - domain: d\n    rule: d.k\n    entries: "
	want := "nothing was changed, because overrides are read from the file " + path + ": change that file" +
		"\non line 2, replace the override by this:" + item + "k=a\n    requests_per_unit: 50\n    reason: why\n    author: ann" +
		"\non line 3, remove this override:" + item + "k=b\n    requests_per_unit: 2" +
		"\nadd this to `overrides`:" + item + `"k=new <&\x1b[0m"` + "\n    requests_per_unit: 7\n    reason: why\n    author: ann"
	if written != nil || err == nil || err.Error() != want || !errors.Is(err, override.ErrReadOnly) {
		t.Errorf("%+v %v\nwant %s", written, err, want)
	}
	_, steps, _ := strings.Cut(want, "add this to `overrides`:")
	if all, errs := override.ReadFile("o.yaml", []byte("overrides:"+steps+"\n")); len(errs) > 0 || len(all) != 1 || all[0].Entries[0].Value != "new <&\x1b[0m" {
		t.Errorf("%+v %v", all, errs)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, was) {
		t.Errorf("%s %v", now, err)
	}

	if written, err := f.Write(t.Context(), "ann", []override.Edit{nothing}); err != nil || len(written) != 1 || written[0].Version != 0 {
		t.Errorf("nothing to remove: %+v %v", written, err)
	}
	found, err := f.Get(t.Context(), []override.Identity{editOf("a", 0).Identity})
	if err != nil || found[0] == nil {
		t.Fatal(found, err)
	}
	for name, expected := range map[string]int64{"another version": found[0].Version + 1, "there is one": 0} {
		edit := editOf("a", 60)
		edit.Expect = &expected
		_, err := f.Write(t.Context(), "", []override.Edit{editOf("other", 1), edit})
		if conflict, ok := errors.AsType[*override.ConflictError](err); !ok || conflict.Found != found[0].Version || !reflect.DeepEqual(conflict.Identity, edit.Identity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.Write(t.Context(), "", []override.Edit{editOf("\xff", 1)}); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Error(err)
	}
	many := make([]override.Edit, override.MaxEdits)
	for i := range many {
		many[i] = editOf(fmt.Sprint(i), 1)
	}
	if _, err := f.Write(t.Context(), "", many); err == nil || len(err.Error()) > 8<<10 || !regexp.MustCompile(`\nand in the same way 9\d\d more$`).MatchString(err.Error()) {
		t.Errorf("many: %v", err)
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
