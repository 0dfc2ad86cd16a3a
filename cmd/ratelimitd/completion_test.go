package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// What may follow each command line. A bar is where the cursor is.
func TestCompletions(t *testing.T) {
	racetest.Sequential(t)
	for line, want := range map[string]string{
		"ch|":                   "check",
		"|":                     "serve healthcheck check test simulate explain schema call peek reset usage shares fleet override completion version help",
		"help ch|":              "check",
		"help set|":             "settings",
		"check --str|":          "--strict",
		"check --strict --str|": "",
		"check -o |":            "table json yaml plain github",
		"check --output j|":     "json",
		"check --output=j|":     "--output=json",
		"check --output = j|":   "json", // bash
		"check --output =|":     "table json yaml plain github",
		"check conf|":           ":files",
		"simulate --log |":      ":files",
		"simulate --log=a|":     ":files",
		"simulate --fail-on r|": "refused",
		"schema t|":             "tests",
		"completion |":          "bash zsh fish",
		"--on-err|":             "--on-error",
		"serve --on-error |":    "error allow deny local",
		"--on-error d|":         "deny",
		"--config_d|":           "", // hidden
		"call -d d --strict|":   "",
		"call -d |":             "",
		"version extra|":        "",
	} {
		typed := strings.TrimSuffix(line, "|")
		words := strings.Fields(typed)
		if typed == "" || strings.HasSuffix(typed, " ") {
			words = append(words, "")
		}
		code, stdout, stderr := asks(t, append([]string{completing}, words...)...)
		var got []string
		for l := range strings.Lines(stdout) {
			word, _, _ := strings.Cut(strings.TrimRight(l, "\n"), "\t")
			got = append(got, word)
		}
		if code != 0 || stderr != "" || strings.Join(got, " ") != want {
			t.Errorf("%q: exit code %d, %q, %v; want %q", line, code, stderr, got, want)
		}
	}
}

// Every flag of every command can be completed, and so can the values of each flag that has few values.
func TestEveryFlagIsCompleted(t *testing.T) {
	racetest.Sequential(t)
	model, _ := modelOf(t)
	for _, n := range model.Children {
		for _, f := range n.Flags {
			if f.Hidden {
				continue
			}
			is := func(w word) bool { return w.text == "--"+f.Name }
			if found, _ := completions(model, []string{n.Name, "--" + f.Name[:1]}); !slices.ContainsFunc(found, is) {
				t.Errorf("%s --%s is not completed: %v", n.Name, f.Name, found)
			}
			found, files := completions(model, []string{n.Name, "--" + f.Name, ""})
			if few := f.Enum != "" || f.Tag.Has("oneof"); few && len(found) == 0 || isFile(f.Value) && !files {
				t.Errorf("the value of %s --%s is not completed: %v, files: %t", n.Name, f.Name, found, files)
			}
		}
	}
}

// The shells themselves complete command lines with the scripts.
func TestCompletionInShells(t *testing.T) {
	racetest.Sequential(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.Symlink(self, filepath.Join(home, "ratelimitd")); err != nil {
		t.Fatal(err)
	}
	write(t, home, "rules of mine/a.yaml", fiveADay)
	for shell, script := range completionScripts {
		write(t, home, "completion."+shell, script)
	}
	asking := map[string]struct {
		args   []string
		script func(words []string, want string) string
	}{
		// What the shell does when the key is pressed: it sets these variables and calls the function.
		"bash": {[]string{"--norc", "--noprofile"}, func(words []string, _ string) string {
			return "source completion.bash\nCOMP_WORDS=(" + quoted(words) + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
				"complete -p ratelimitd >/dev/null && _ratelimitd 2>&1 && printf '%s\\n' \"${COMPREPLY[@]}\""
		}},
		// A real zsh on a pseudo-terminal gets the keys: a tab, and one more that lists what is possible.
		"zsh": {[]string{"-f"}, func(words []string, want string) string {
			return "zmodload zsh/zpty\nzpty z zsh -f -i\n" +
				"zpty -w z 'PS1=; cd ${(q)HOME}; autoload -U compinit; compinit -u -D; source completion.zsh; print READ\"Y\"'\nzpty -r z got '*READY*'\n" +
				"zpty -w -n z " + quoted([]string{strings.Join(words, " ") + "\t\t"}) + "\nzpty -r z got '*" + want + "*'\nprint -r -- $got\n"
		}},
		"fish": {[]string{"--no-config"}, func(words []string, _ string) string {
			return "source completion.fish; complete -C " + quoted([]string{strings.Join(words, " ")})
		}},
	}
	for shell, how := range asking {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				missing(t, shell)
			}
			for _, c := range []struct{ words, want []string }{
				{[]string{"ratelimitd", "simu"}, []string{"simulate"}},
				{[]string{"ratelimitd", "check", "--output", ""}, []string{"github", "yaml"}},
				{[]string{"ratelimitd", "check", "--in"}, []string{"--info"}},
				{[]string{"ratelimitd", "check", "rules"}, []string{"mine"}},
			} {
				cmd := exec.Command(shell, append(slices.Clone(how.args), "-c", how.script(c.words, strings.Join(c.want, "*")))...)
				cmd.Dir = home
				cmd.Env = []string{"PATH=" + home + ":" + os.Getenv("PATH"), "HOME=" + home, "TERM=dumb", "LC_ALL=C.UTF-8", asProcess + "=1"}
				text, code := untilEnd(t, cmd)
				for _, want := range c.want {
					if !strings.Contains(text, want) {
						t.Errorf("%q: exit code %d, want %s:\n%s", c.words, code, want, text)
					}
				}
			}
		})
	}
}

// missing skips a test without a program, and fails where all of them must run.
func missing(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing, and CI is set", program)
	}
	t.Skipf("NOT RUN without %s: scripts/install-shells gets it", program)
}

// quoted are words as a shell reads them.
func quoted(words []string) string {
	var all []string
	for _, w := range words {
		all = append(all, "'"+w+"'")
	}
	return strings.Join(all, " ")
}
