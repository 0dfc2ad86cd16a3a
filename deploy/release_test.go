package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestReleaseIsBuiltAsTheImage compares the build command of goreleaser with the build command of
// workshop/scripts/rootfs, so that both give the same bytes. workshop/scripts/release-test compares the bytes.
func TestReleaseIsBuiltAsTheImage(t *testing.T) {
	b, err := os.ReadFile("../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds []struct {
			Env, Tags, Flags []string
			Ldflags          string
		}
	}
	if err := yaml.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Builds) != 1 {
		t.Fatalf("goreleaser makes %d builds", len(config.Builds))
	}
	build := config.Builds[0]
	linker := strings.NewReplacer("v{{ .Version }}", "${VERSION:-}", "{{ .FullCommit }}", "${COMMIT:-}", "{{ .CommitDate }}", "${DATE:-}").Replace(build.Ldflags)
	command := strings.Join(build.Env, " ") + " go build -tags " + strings.Join(build.Tags, ",") + " " +
		strings.Join(build.Flags, " ") + ` -ldflags "` + linker + `"`
	rootfs, err := os.ReadFile("../workshop/scripts/rootfs")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(rootfs), "\n"+command+" ") {
		t.Errorf("goreleaser builds with\n%s\nand workshop/scripts/rootfs does not", command)
	}
}

// TestReleaseNotes prints parts of a changelog.
func TestReleaseNotes(t *testing.T) {
	script, err := os.ReadFile("../workshop/scripts/release-notes")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "workshop", "scripts"), 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "workshop", "scripts", "release-notes")
	if err := os.WriteFile(name, script, 0o755); err != nil {
		t.Fatal(err)
	}
	changelog := `# Changelog

## [Unreleased]

### Added

- what comes next

## [1.10.0] - 2027-02-01

- the tenth

## [1.1.0] - 2027-01-31

[Unreleased]: https://example.com
`
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(changelog), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"v1.10.0":     "- the tenth",
		"v1.2.0-rc.1": "### Added\n\n- what comes next",
		"v1.1.0":      "", // it has only a heading
		"v1.1":        "",
		"v2.0.0":      "",
	} {
		out, err := exec.Command(name, version).Output()
		if got := strings.TrimSpace(string(out)); got != want || (err == nil) != (want != "") {
			t.Errorf("the notes of %s are %q (%v), want %q", version, got, err, want)
		}
	}
}

// TestActionsAreNamedByCommits reads the workflows: the author of an action can move its tags, and some jobs may write
// releases and sign.
func TestActionsAreNamedByCommits(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	uses := regexp.MustCompile(`(?m)uses: ([^.\s]\S*)(.*)$`)
	commit := regexp.MustCompile(`^[\w-]+(/[\w-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	found := 0
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(b), -1) {
			if found++; !commit.MatchString(m[1] + m[2]) {
				t.Errorf("%s uses %s, want the commit of a version, and the version as a comment", name, m[1]+m[2])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d actions are found", found)
	}
}
