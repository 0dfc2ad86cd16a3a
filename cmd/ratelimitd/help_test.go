package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// modelOf returns the model of all commands.
func modelOf(t *testing.T) (*kong.Application, map[string]runner) {
	t.Helper()
	c := new(cli)
	parser, err := c.parser()
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model, c.commands()
}

// The help of the program is short and names every command.
func TestHelpOfTheProgram(t *testing.T) {
	racetest.Sequential(t)
	model, _ := modelOf(t)
	code, said, stderr := asks(t, "--help")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if lines := strings.Count(said, "\n"); lines > 30 {
		t.Errorf("%d lines are too many:\n%s", lines, said)
	}
	for line := range strings.Lines(said) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("a line is too long: %s", line)
		}
	}
	for _, n := range visible(model) {
		if !strings.Contains(said, "\n  "+n.Name+" ") {
			t.Errorf("%s is missing:\n%s", n.Name, said)
		}
		if n.Group == nil {
			t.Errorf("%s has no group", n.Name)
		}
	}
	parses(t, overviewExample)
	for _, same := range []string{"help", "-h", "--rules x --help"} {
		if _, other, _ := asks(t, strings.Fields(same)...); other != said {
			t.Errorf("%s shows something else:\n%s", same, other)
		}
	}
}

// parses reports an error for an example that is not a valid command line.
func parses(t *testing.T, line string) {
	t.Helper()
	_, words, found := strings.Cut(" "+line, " ratelimitd ")
	if !found {
		t.Errorf("%q does not run ratelimitd", line)
		return
	}
	words, _, _ = strings.Cut(words, " > ")
	if _, _, wrong, _ := lineRead(t, parse, strings.Fields(words)); wrong != "" {
		t.Errorf("the example %q: %s", line, wrong)
	}
}

// notData lists the commands whose output is not data, with the kind of output.
var notData = map[string]string{"serve": "a log", "healthcheck": "what the service said"}

// Every command's help has all parts that a reader looks for. The test asks the model, so no new command can miss it.
func TestHelpOfEveryCommand(t *testing.T) {
	racetest.Sequential(t)
	model, commands := modelOf(t)
	for _, n := range model.Children {
		code, said, stderr := asks(t, n.Name, "--help")
		if code != 0 || stderr != "" {
			t.Errorf("%s --help: exit code %d: %s", n.Name, code, stderr)
			continue
		}
		if _, same, _ := asks(t, "help", n.Name); same != said {
			t.Errorf("help %s shows something else", n.Name)
		}
		about := commands[n.Name].about()
		if len(about.examples) == 0 {
			t.Errorf("%s has no example", n.Name)
		}
		for _, e := range about.examples {
			parses(t, e.line)
			if !strings.Contains(said, e.line) || !strings.Contains(said, e.what) {
				t.Errorf("the help of %s has no %q", n.Name, e.line)
			}
		}
		codes := exitCodes(n.Name, commands[n.Name])
		for i, e := range codes {
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^  %d +%s`, e.code, regexp.QuoteMeta(strings.Fields(e.meaning)[0]))).MatchString(said) {
				t.Errorf("the help of %s has no exit code %d", n.Name, e.code)
			}
			if i > 0 && codes[i-1].code >= e.code {
				t.Errorf("%s: exit code %d is not in order", n.Name, e.code)
			}
		}
		for _, must := range []int{0, 2} {
			if !slices.ContainsFunc(codes, func(e exitCode) bool { return e.code == must }) {
				t.Errorf("%s: what is exit code %d?", n.Name, must)
			}
		}
		if strings.Contains(strings.ToLower(n.Help), "exit code") {
			t.Errorf("%s: the exit codes have a place of their own", n.Name)
		}
		if strings.Count(said, "\n") > 100 {
			t.Errorf("the help of %s has %d lines; flags that it has in common with serve belong to a group whose title ends in %q", n.Name, strings.Count(said, "\n"), asServe)
		}
		for line := range strings.Lines(said) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 100 {
				t.Errorf("%s: a line is too long: %s", n.Name, line)
			}
		}
		out := n.Flags[slices.IndexFunc(n.Flags, func(f *kong.Flag) bool { return f.Name == "help" })+1:]
		i := slices.IndexFunc(out, func(f *kong.Flag) bool { return f.Name == "output" })
		switch {
		case i < 0 && notData[n.Name] == "":
			t.Errorf("%s has no -o", n.Name)
		case i >= 0 && (out[i].Short != 'o' || !slices.Contains(out[i].EnumSlice(), "json") || !slices.Contains(out[i].EnumSlice(), "yaml")):
			t.Errorf("%s: -o must offer json and yaml, it offers %v", n.Name, out[i].EnumSlice())
		}
	}
}

// The help of serve is short: it shows the settings that most people need, by group, and where the others are.
func TestHelpOfServeIsShort(t *testing.T) {
	racetest.Sequential(t)
	_, commands := modelOf(t)
	_, short, _ := asks(t, "serve", "--help")
	code, all, stderr := asks(t, "help", everySetting)
	if code != 0 || stderr != "" {
		t.Fatalf("help %s: exit code %d: %s", everySetting, code, stderr)
	}
	if lines := strings.Count(short, "\n"); lines > 70 {
		t.Errorf("%d lines are too many:\n%s", lines, short)
	}
	flags := regexp.MustCompile(`(?m)^  --([a-z-]+|\[no-\][a-z-]+)`)
	var shown []string
	for _, m := range flags.FindAllStringSubmatch(short, -1) {
		shown = append(shown, m[1])
	}
	common := slices.Sorted(slices.Values(commands["serve"].about().common))
	if slices.Sort(shown); len(shown) != 10 || !slices.Equal(shown, common) {
		t.Errorf("it shows %v, want %v", shown, common)
	}
	want := fmt.Sprintf(`"ratelimitd help settings" lists all %d.`, len(flags.FindAllString(all, -1)))
	if !strings.Contains(short, want) {
		t.Errorf("it does not say %s:\n%s", want, short)
	}
}

// Each default is printed once, and by the program: a text that repeats it would go stale.
func TestDefaultsAreShownOnce(t *testing.T) {
	racetest.Sequential(t)
	model, _ := modelOf(t)
	for _, n := range model.Children {
		for _, f := range n.Flags {
			shown := describe(f.Value)
			if !f.IsBool() {
				shown = f.FormatPlaceHolder() + " " + shown
			}
			if f.HasDefault && f.Default != "" && !f.IsBool() && !strings.Contains(shown, f.Default) {
				t.Errorf("%s --%s does not show its default %s: %s", n.Name, f.Name, f.Default, shown)
			}
			if stated := regexp.MustCompile(`\bdefault (is )?\S*\d|Default: `).FindAllString(f.Help, -1); f.HasDefault && len(stated) > 0 {
				t.Errorf("%s --%s states its default in its text, too: %s", n.Name, f.Name, shown)
			}
		}
	}
}

// With a wrong command line, every command exits with code 2. The first line of its output names the mistake, and the
// second line the help to read.
func TestMistakesOfEveryCommand(t *testing.T) {
	racetest.Sequential(t)
	model, _ := modelOf(t)
	for _, n := range model.Children {
		code, stdout, stderr := asks(t, n.Name, "--no-such-flag")
		want := "ratelimitd: unknown flag --no-such-flag\nratelimitd " + n.Name + " --help lists its flags, with examples\n"
		if n.Name == "serve" {
			want = "ratelimitd: unknown flag --no-such-flag\nratelimitd help settings lists its flags\n"
		}
		if code != 2 || stdout != "" || stderr != want {
			t.Errorf("%s --no-such-flag: exit code %d, %q, want %q", n.Name, code, stderr, want)
		}
	}
	if _, _, stderr := asks(t, "frobnicate"); !strings.HasSuffix(stderr, "\nratelimitd --help lists the commands\n") {
		t.Errorf("an unknown command: %s", stderr)
	}
}

// A setting that makes no sense ends the service with 2; a port that is in use ends it with 1.
func TestExitCodesOfServe(t *testing.T) {
	racetest.Sequential(t)
	rules := rulesOf(t, fiveADay)
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		code int
	}{
		"a flag":                 {nil, []string{"--port", "x"}, 2},
		"a level":                {map[string]string{"LOG_LEVEL": "loud"}, []string{"--rules", rules}, 2},
		"a store":                {map[string]string{"BACKEND_TYPE": "paper"}, []string{"--rules", rules}, 2},
		"a file":                 {map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "no-such", "GRPC_SERVER_TLS_KEY": "no-such"}, []string{"--rules", rules}, 2},
		"a short token":          {map[string]string{"RATELIMITD_ADMIN_TOKEN": "short"}, []string{"--rules", rules}, 2},
		"the directory of rules": {nil, []string{"--rules", "no-such-directory"}, 2},
		"an address elsewhere":   {map[string]string{"HOST": "192.0.2.1", "PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0"}, []string{"--rules", rules}, 1},
	} {
		if code, text := output(t, c.env, c.args...); code != c.code {
			t.Errorf("%s: exit code %d, want %d:\n%s", name, code, c.code, text)
		}
	}
}
