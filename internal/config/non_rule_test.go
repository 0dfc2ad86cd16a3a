package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The service reads every file, as envoyproxy/ratelimit does. A file with a domain takes effect under any name; the log
// names every other file.
func TestNamesHideNoRules(t *testing.T) {
	dir := t.TempDir()
	var log logged
	for name, domain := range map[string]string{"limits_test.yaml": "tested", "sub/more_test.yml": "more", "README.yaml": "readme", "notes.md": "notes", "kept.yaml~": "kept", "a.yaml": "a"} {
		write(t, filepath.Join(dir, name), rules(domain, 7))
	}
	write(t, filepath.Join(dir, "a.yaml~"), rules("old", 1))
	write(t, filepath.Join(dir, ".hidden.yaml"), rules("hidden", 1))
	write(t, filepath.Join(dir, ".a.yaml.swp"), "b0VIM")
	write(t, filepath.Join(dir, "a_test.yaml"), "domain: a\ncases: [{name: one}]\n")
	write(t, filepath.Join(dir, "b_test.yaml"), "cases: []\n")
	write(t, filepath.Join(dir, "broken_test.yaml"), "domain: broken\ndescriptors: [\n")
	write(t, filepath.Join(dir, "README"), "Rules of ours.\n\n    domain: x\n\ndomain: the first key\n- is: [\n")
	f := NewDirectory(Options{Dir: dir, Logger: log.logger()})
	r := load(t, f, "README.yaml=loaded", "a.yaml=loaded", "broken_test.yaml=rejected", "kept.yaml~=loaded", "limits_test.yaml=loaded", "notes.md=loaded", "sub/more_test.yml=loaded")
	for _, domain := range []string{"tested", "more", "readme", "notes", "kept", "a"} {
		if got := requests(r.Tree, domain); got != 7 {
			t.Errorf("domain %s allows %d", domain, got)
		}
	}
	want := []Skipped{
		{".hidden.yaml", true, false, "its name starts with a dot"},
		{"README", false, false, "it holds no domain"},
		{"a.yaml~", true, false, "it is the backup of a file next to it"},
		{"a_test.yaml", false, true, "it holds tests, or no domain"},
		{"b_test.yaml", false, true, "it holds tests, or no domain"},
	}
	if diff := cmp.Diff(want, r.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	said := log.take()
	for _, line := range []string{
		`level=WARN msg="file skipped: none of its rules is active" file=.hidden.yaml `,
		`level=WARN msg="file skipped: none of its rules is active" file=a.yaml~ `,
		`level=INFO msg="files skipped" files=[README] `,
		`level=DEBUG msg="files skipped" files="[a_test.yaml b_test.yaml]" total_files=2 `,
	} {
		if n := strings.Count(said, line); n != 1 {
			t.Errorf("the log has %d times %s:\n%s", n, line, said)
		}
	}
	// The log names it once, not at every load.
	if again, err := f.Load(); err != nil || again.Changed || len(again.Skipped) != len(want) || log.take() != "" {
		t.Errorf("again: %+v, %v", again, err)
	}
	// A file of tests becomes a rule file, and disappears from the list of skipped files.
	write(t, filepath.Join(dir, "a_test.yaml"), rules("b", 3))
	if r, err := f.Load(); err != nil || requests(r.Tree, "b") != 3 || len(r.Skipped) != len(want)-1 {
		t.Errorf("%+v, %v", r, err)
	}
	write(t, filepath.Join(dir, "a_test.yaml"), "cases: []\n")
	if r, err := f.Load(); err != nil || requests(r.Tree, "b") != -1 || len(r.Skipped) != len(want) || !strings.Contains(log.take(), "rule file removed") {
		t.Errorf("%+v, %v", r, err)
	}
}

// Looking for files without rules does not parse rule files a second time.
func TestARuleFileIsParsedOnce(t *testing.T) {
	dir, data := t.TempDir(), generate("d", 10, 20)
	path := filepath.Join(dir, "a.yaml")
	write(t, path, string(data))
	reading := testing.AllocsPerRun(3, func() { readSource(path, data, true) })
	loading := testing.AllocsPerRun(3, func() {
		if _, err := NewDirectory(Options{Dir: dir, Logger: new(logged).logger()}).Load(); err != nil {
			t.Fatal(err)
		}
	})
	if loading > 1.3*reading {
		t.Errorf("loading a file makes %.0f allocations, reading its rules %.0f", loading, reading)
	}
}
