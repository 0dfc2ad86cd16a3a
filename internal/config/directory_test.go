package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// logged is a log that a test can read.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns the log lines since the last call.
func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rules is a file with one domain and one rule that allows this number of requests.
func rules(domain string, requests int) string {
	return fmt.Sprintf("domain: %s\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]\n", domain, requests)
}

// requests returns the number that the rule of such a file allows now, or -1 without a rule.
func requests(tree *descriptor.Tree, domain string) int {
	d := tree.Domain(domain)
	if d == nil {
		return -1
	}
	r := d.Match([]descriptor.Entry{{Key: "k", Value: "v"}})
	if r == nil {
		return -1
	}
	return int(r.Limits[0].Requests)
}

// states returns "name=state" for every file.
func states(r Result) []string {
	out := []string{}
	for _, f := range r.Files {
		out = append(out, f.Name+"="+string(f.State))
	}
	return out
}

func load(t *testing.T, f *Directory, want ...string) Result {
	t.Helper()
	r, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append([]string{}, want...), states(r)); diff != "" {
		t.Fatalf("states (-want +got):\n%s", diff)
	}
	return r
}

func TestDirectoryChoosesItsFiles(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"b.yaml", "a.yml", "plain", "sub/c.yaml", "sub/deeper/d.json"} {
		write(t, filepath.Join(dir, name), rules(fmt.Sprintf("domain%d", i), i))
	}
	for _, name := range []string{".hidden.yaml", ".dir/x.yaml", "sub/.git/x.yaml", "b.yaml~", "b_test.yaml", "sub/c_test.yml", "README", "README.txt", "notes.md"} {
		write(t, filepath.Join(dir, name), "{{{")
	}
	elsewhere := t.TempDir()
	write(t, filepath.Join(elsewhere, "e.yaml"), rules("e", 7))
	write(t, filepath.Join(elsewhere, "more", "f.yaml"), rules("f", 8))
	for link, target := range map[string]string{"linked.yaml": filepath.Join(elsewhere, "e.yaml"), "more": filepath.Join(elsewhere, "more"), "sub/circle": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := load(t, NewDirectory(Options{Dir: dir, Logger: new(logged).logger()}),
		"a.yml=loaded", "b.yaml=loaded", "linked.yaml=loaded", "more/f.yaml=loaded", "plain=loaded", "sub/c.yaml=loaded", "sub/deeper/d.json=loaded")
	if requests(r.Tree, "domain4") != 4 || requests(r.Tree, "e") != 7 || requests(r.Tree, "f") != 8 || r.InUse != 7 {
		t.Errorf("%+v", r)
	}
	if p := r.Tree.Domain("e").Match([]descriptor.Entry{{Key: "k", Value: "v"}}).Position; p.File != filepath.Join(dir, "linked.yaml") {
		t.Errorf("position %+v", p)
	}
}

func TestDirectoryWithoutAGoodFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	f := NewDirectory(Options{Dir: dir, Logger: new(logged).logger()})
	if r, err := f.Load(); !errors.Is(err, fs.ErrNotExist) || r.Tree != nil || r.Changed {
		t.Fatalf("missing directory: %+v, %v", r, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if r := load(t, f); r.Tree == nil || r.InUse != 0 || !r.Changed {
		t.Fatalf("empty directory: %+v", r)
	}
	write(t, filepath.Join(dir, "a.yaml"), "domian: a\n")
	r := load(t, f, "a.yaml=rejected")
	if r.InUse != 0 || r.Tree.Domains() != 0 || len(r.Files[0].Errors) != 1 ||
		r.Files[0].Errors[0] != filepath.Join(dir, "a.yaml")+":1:1: unknown key `domian`: did you mean `domain`?" {
		t.Fatalf("bad file: %+v", r)
	}
}

func TestFilesKeepTheirLastGoodVersion(t *testing.T) {
	dir := t.TempDir()
	var log logged
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	write(t, a, rules("a", 1))
	write(t, b, rules("b", 1))
	write(t, c, "domain: c\ndescriptors: [{kee: k}]\n")
	f := NewDirectory(Options{Dir: dir, Logger: log.logger()})

	first := load(t, f, "a.yaml=loaded", "b.yaml=loaded", "c.yaml=rejected")
	if out := log.take(); strings.Count(out, "\n") != 3 || !strings.Contains(out, "c.yaml:2:16: unknown key `kee`") {
		t.Errorf("log:\n%s", out)
	}
	if first.InUse != 2 || !slices.Equal(first.Files[0].Domains, []string{"a"}) || first.Files[0].Rules != 1 {
		t.Errorf("%+v", first)
	}

	// Nothing has changed: the log stays empty and the tree is the same.
	again := load(t, f, "a.yaml=loaded", "b.yaml=loaded", "c.yaml=rejected")
	if again.Changed || again.Tree != first.Tree || log.take() != "" {
		t.Errorf("reload without a change: %+v", again)
	}

	// A bad version arrives: the last good one stays, and the other files are still read.
	write(t, a, "domain: a\ndescriptors: [\n")
	write(t, b, rules("b", 2))
	r := load(t, f, "a.yaml=stale", "b.yaml=loaded", "c.yaml=rejected")
	if requests(r.Tree, "a") != 1 || requests(r.Tree, "b") != 2 || r.InUse != 2 || !r.Changed {
		t.Errorf("%+v", r)
	}
	if requests(first.Tree, "b") != 1 {
		t.Error("a tree in use was written to")
	}
	stale := r.Files[0]
	if !stale.Since.After(first.Files[0].Since) || len(stale.Errors) != 1 || stale.Rules != 1 {
		t.Errorf("status of the stale file: %+v", stale)
	}
	if r.Files[1].Since != first.Files[1].Since || r.Files[2].Since != first.Files[2].Since {
		t.Error("Since changed without a change of state")
	}
	if out := log.take(); strings.Count(out, "\n") != 2 || strings.Count(out, "last good version") != 1 {
		t.Errorf("log:\n%s", out)
	}

	// Another bad version: the file is still stale, since the same time. The rules and the tree are unchanged.
	write(t, a, "domian: a\n")
	r2 := load(t, f, "a.yaml=stale", "b.yaml=loaded", "c.yaml=rejected")
	if r2.Tree != r.Tree || !r2.Changed || r2.Files[0].Since != stale.Since || !strings.Contains(r2.Files[0].Errors[0], "domian") {
		t.Errorf("%+v", r2.Files[0])
	}

	// Both files become good, including the rejected one.
	write(t, a, rules("a", 3))
	write(t, c, rules("c", 4))
	r = load(t, f, "a.yaml=loaded", "b.yaml=loaded", "c.yaml=loaded")
	if requests(r.Tree, "a") != 3 || requests(r.Tree, "c") != 4 || len(r.Files[0].Errors) != 0 || !r.Files[0].Since.After(stale.Since) {
		t.Errorf("%+v", r)
	}
	log.take()

	// Removing a file removes its rules.
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	r = load(t, f, "b.yaml=loaded", "c.yaml=loaded")
	if r.Tree.Domain("a") != nil || !strings.Contains(log.take(), "rule file removed") {
		t.Errorf("%+v", r)
	}
}

func TestADomainBelongsToTheFirstFile(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, b, rules("x", 2))
	f := NewDirectory(Options{Dir: dir, Logger: new(logged).logger()})
	load(t, f, "b.yaml=loaded")

	// a takes the domain from b. The only version of b becomes bad.
	write(t, a, rules("x", 1))
	if r := load(t, f, "a.yaml=loaded", "b.yaml=rejected"); requests(r.Tree, "x") != 1 || !strings.Contains(r.Files[1].Errors[0], "a.yaml:1") {
		t.Errorf("%+v", r)
	}
	// b moves to another domain, then back. The version in between is its last good one.
	write(t, b, rules("y", 3))
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")
	write(t, b, rules("x", 4))
	if r := load(t, f, "a.yaml=loaded", "b.yaml=stale"); requests(r.Tree, "y") != 3 || requests(r.Tree, "x") != 1 {
		t.Errorf("%+v", r)
	}
	// a leaves the domain: the newest version of b becomes good without a change.
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	if r := load(t, f, "b.yaml=loaded"); requests(r.Tree, "x") != 4 || r.Tree.Domain("y") != nil {
		t.Errorf("%+v", r)
	}
	// When domains are merged, both files are good unless they repeat a rule.
	write(t, a, "domain: x\ndescriptors: [{key: j}]\n")
	load(t, NewDirectory(Options{Dir: dir, MergeDomains: true, Logger: new(logged).logger()}), "a.yaml=loaded", "b.yaml=loaded")
	write(t, a, rules("x", 1))
	load(t, NewDirectory(Options{Dir: dir, MergeDomains: true, Logger: new(logged).logger()}), "a.yaml=loaded", "b.yaml=rejected")
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	f := NewDirectory(Options{Dir: dir, MaxFileSize: 200, Logger: new(logged).logger()})
	write(t, filepath.Join(dir, "a.yaml"), rules("a", 1))
	write(t, filepath.Join(dir, "b.yaml"), rules("b", 1)+strings.Repeat("#", 200))
	if err := os.Symlink("nowhere", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	r := load(t, f, "a.yaml=loaded", "b.yaml=rejected", "c.yaml=rejected")
	if !strings.Contains(r.Files[1].Errors[0], "larger than 200 bytes") || !strings.Contains(r.Files[2].Errors[0], "no such file") {
		t.Errorf("%+v", r.Files)
	}
	if again := load(t, f, "a.yaml=loaded", "b.yaml=rejected", "c.yaml=rejected"); again.Changed {
		t.Error("the same errors are a change")
	}

	// A loaded file that becomes unreadable is stale, even if its directory becomes unreadable.
	write(t, filepath.Join(dir, "sub", "d.yaml"), rules("d", 5))
	if err := os.Remove(filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	load(t, f, "a.yaml=loaded", "b.yaml=rejected", "sub/d.yaml=loaded")
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if r := load(t, f, "a.yaml=stale", "b.yaml=rejected", "sub/d.yaml=loaded"); requests(r.Tree, "a") != 1 {
		t.Errorf("%+v", r)
	}
	if os.Getuid() == 0 {
		return // root can read every directory
	}
	sub := filepath.Join(dir, "sub")
	if err := os.Chmod(sub, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, os.Chmod(sub, 0o755)) }()
	if r := load(t, f, "a.yaml=stale", "b.yaml=rejected", "sub=rejected", "sub/d.yaml=stale"); requests(r.Tree, "d") != 5 {
		t.Errorf("%+v", r)
	}
}

// As root, the effect of an unreadable directory on the files below it cannot be tested.
func TestFilesBelowADirectoryThatCannotBeRead(t *testing.T) {
	f := NewDirectory(Options{Dir: "rules"})
	f.files = map[string]*ruleFile{"sub/a.yaml": nil, "subway.yaml": nil}
	denied := errors.New("denied")
	got := f.expandUnreadable([]found{{name: "sub", err: denied, dir: true}, {name: "subway.yaml"}})
	if len(got) != 3 || got[0].name != "sub" || got[1].name != "sub/a.yaml" || !errors.Is(got[1].err, denied) || got[2].err != nil {
		t.Errorf("%+v", got)
	}
}
