package bearer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	one   = "one-token-of-some-length"
	two   = "two-token-of-some-length"
	three = "three-token-of-some-length"
	four  = "four-token-of-some-length"
	five  = "five-token-of-some-length"
	six   = "six-token-of-some-length"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "# who may look\n\nann "+one+"\r\n  "+two+"\nbob read "+four+"\nread "+five+"\ncy operate "+six+"\n")
	tokens, err := New(Options{Token: three, Name: "SETTING", File: file})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][2]string{
		one: {"ann", Operate}, two: {"line 4", Operate}, three: {"SETTING", Operate}, four: {"bob", Read}, five: {"line 6", Read}, six: {"cy", Operate},
	} {
		if got, role, err := tokens.Owner(text); got != want[0] || role != want[1] || err != nil {
			t.Errorf("%s: %q %q %v, want %q", text, got, role, err, want)
		}
	}
	for _, text := range []string{"", "ann", one + "x", one[1:], "ann " + one, "#"} {
		if got, role, err := tokens.Owner(text); got != "" || role != "" || err != nil {
			t.Errorf("%q: %q %v, want it unknown", text, got, err)
		}
	}
}

func TestFileChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, one)
	tokens, err := New(Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "new "+two)
	if _, role, err := tokens.Owner(one); role != "" || err != nil {
		t.Errorf("a token that was taken out: %v", err)
	}
	if owner, role, err := tokens.Owner(two); owner != "new" || role != Operate || err != nil {
		t.Errorf("a token that came: %q %v", owner, err)
	}
	write(t, file, "")
	if _, role, err := tokens.Owner(two); role != "" || err != nil {
		t.Errorf("an empty file: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, role, err := tokens.Owner(two); role != "" || err == nil {
		t.Errorf("no file: %v, want an error", err)
	}
}

func TestBadTokens(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		o    Options
		file string
		want string
	}{
		"none":          {Options{}, "", "there is no token"},
		"short":         {Options{Token: "secretsecret", Name: "SETTING"}, "", "SETTING: a token of fewer than 16"},
		"a blank":       {Options{Token: "secret secret secret", Name: "SETTING"}, "", "without spaces"},
		"empty file":    {Options{}, "# nothing\n", "there is no token in "},
		"short in file": {Options{}, "\n# x\nann secretsecret\n", "tokens:3: a token of fewer than 16"},
		"words":         {Options{}, "ann b read " + one + "\n", "tokens:1: more than a name, a role (read or operate) and a token"},
		"a role":        {Options{}, "ann " + one + " secretsecretsecret\n", "tokens:1: the second of the three words is no role: write read or operate"},
		"not ASCII":     {Options{}, "secret-sécret-secret\n", "tokens:1: a token must consist of printable ASCII"},
		"large":         {Options{}, strings.Repeat("secretsecretsecret\n", 5000), "larger than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.file != "" {
				c.o.File = filepath.Join(dir, "tokens")
				write(t, c.o.File, c.file)
			}
			_, err := New(c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secretsecret") || strings.Contains(err.Error(), "secret secret") {
				t.Errorf("got %v, want %q and no token", err, c.want)
			}
			if c.file != "" {
				if _, first := First(c.o.File); first == nil || first.Error() != err.Error() {
					t.Errorf("First: %v, want the same error", first)
				}
			}
		})
	}
	if _, err := New(Options{File: filepath.Join(dir, "gone")}); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("no file: %v", err)
	}
}

func TestFirst(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "# for the pipeline\nann "+one+"\n"+two+"\n")
	if got, err := First(file); got != one || err != nil {
		t.Errorf("%q %v", got, err)
	}
}
