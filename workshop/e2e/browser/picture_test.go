package browser_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	ansi "github.com/buildkite/terminal-to-html/v3"

	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

// terminalPage shows lines as in a terminal, with the CSS classes of terminal-to-html.
const terminalPage = `<!doctype html><meta charset="utf-8"><title>terminal</title><style>
body { margin: 0; background: #16181d; color: #d6d9e0 }
pre { margin: 0; padding: 16px 20px; font: 14px/20px "DejaVu Sans Mono", Menlo, Consolas, monospace }
.term-fg1 { font-weight: bold; color: #fff }
.term-fg2 { color: #8b919e }
.term-fg31 { color: #ff6b6b }
.term-fg32 { color: #5fd38d }
.term-fg33 { color: #e5c07b }
</style><pre>%s</pre>
`

// These match parts of the tutorial's page: files in blocks below a comment with their name, and times that differ with
// every run.
var (
	tutorialBlock = regexp.MustCompile("(?s)(?:<!-- (file|append|steps)(?:: (\\S+))? -->\n)?```(\\w*)\n(.*?)```\n")
	elapsed       = regexp.MustCompile(`\bin [\d.]+(µs|us|ms|s)\b`)
)

var colors = regexp.MustCompile(`\x1b\[\d*m`)

// The tutorial's picture matches its failing test in a terminal. go test -run Picture -update renews the picture.
func TestPictureOfAFailingTest(t *testing.T) {
	b := browser.Open(t)
	ratelimitd, err := built()
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(top, "docs", "learn", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := tutorialBlock.FindAllSubmatch(page, -1)
	t.Chdir(t.TempDir())
	for _, block := range files {
		name, text := string(block[2]), string(block[4])
		if string(block[1]) != "file" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.Replace(text, "minutes", "minute", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.yaml") {
			break // the test fails at this point of the tutorial
		}
	}
	painted := failing(t, ratelimitd, "test", "--color", "always", "rules")
	painted = "$ ratelimitd test rules\n" + painted
	plain := colors.ReplaceAllString(painted, "")
	if documented := elapsed.ReplaceAllString(string(page), "#"); !*update && !strings.Contains(documented, "```console\n"+elapsed.ReplaceAllString(plain, "#")+"```") {
		t.Errorf("the tutorial does not show\n%s", plain)
	}

	name := filepath.Join(t.TempDir(), "terminal.html")
	if err := os.WriteFile(name, fmt.Appendf(nil, terminalPage, ansi.Render([]byte(painted))), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Show(t, name, "pre")
	// An empty line holds a non-breaking space, so that it is as high as the others.
	if shown := browser.Ask[string](t, b, `document.querySelector("pre").innerText.replaceAll("\u00a0", "").trim()`); shown != strings.TrimSpace(plain) {
		t.Errorf("the page shows\n%s\nnot\n%s", shown, plain)
	}
	for text, color := range map[string]string{
		"FAIL": "rgb(255, 107, 107)", "- expected  1m": "rgb(95, 211, 141)", "+ got       30s": "rgb(255, 107, 107)",
	} {
		got := browser.Ask[string](t, b, fmt.Sprintf(`getComputedStyle([...document.querySelectorAll("pre span")].find(s => s.innerText === %q)).color`, text))
		if got != color {
			t.Errorf("%q has the colour %s, want %s", text, got, color)
		}
	}
	b.Quiet(t)

	picture := filepath.Join(top, "docs", "images", "failing-test.png")
	source := elapsed.ReplaceAllString(painted, "in #")
	if *update {
		height := int64(32 + 20*strings.Count(plain, "\n"))
		if err := os.WriteFile(picture, labelled(b.Picture(t, 800, height), source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(have)); err != nil {
		t.Error(err)
	}
	if !bytes.Contains(have, []byte("Source\x00"+source)) {
		t.Errorf("%s is a picture of something else: go test -run Picture -update", picture)
	}
}

// failing runs a program, requires exit code 1, and returns its output.
func failing(t *testing.T, program string, args ...string) string {
	t.Helper()
	said, err := exec.Command(program, args...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v\n%s", err, said)
	}
	return string(said)
}

// labelled adds the text that a picture shows to its metadata. The pixels cannot be compared: they differ between
// machines.
func labelled(picture []byte, source string) []byte {
	const header = 8 + 4 + 4 + 13 + 4 // the signature and the first chunk
	body := append([]byte("tEXtSource\x00"), source...)
	out := append([]byte{}, picture[:header]...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(body)-4))
	out = append(out, body...)
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
	return append(out, picture[header:]...)
}
