package main

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// lineRead reads a command line in one of two ways and returns the subcommand, or the error.
func lineRead(t *testing.T, how func(*kong.Kong, []string) (string, error), args []string) (c *cli, name, wrong, printed string) {
	t.Helper()
	c = new(cli)
	var out strings.Builder
	parser, err := newParser(c, kong.Writers(&out, io.Discard), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	name, err = how(parser, args)
	if err != nil {
		wrong = err.Error()
	}
	return c, name, wrong, out.String()
}

// kongs reads a command line with kong, without our own parser.
func kongs(parser *kong.Kong, args []string) (string, error) {
	line, err := parser.Parse(args)
	if err != nil {
		return "", err
	}
	return line.Selected().Name, nil
}

// Command lines give the same values and the same error messages as with kong itself.
func TestParseIsKongs(t *testing.T) {
	for _, text := range []string{
		"", "serve", "--rules a --rules b", "serve --no-such-flag", "serve --grpc-port 70000", "serve extra",
		"version", "version extra", "schema", "schema tests", "schema others", "check", "check a b --strict", "check --output xml", "check --output",
		"test --color never a_test.yaml", "test --color green", "call", "call -d d", "call a=b", "call -d d a=b c=d", "call -d d a=b -o yaml",
		"peek -d d", "reset -d d a=b", "explain -d d a=b", "explain a=b", "simulate", "simulate --rules r", "simulate --rules r --mapping m --log a,b --log c",
		"simulate --rules r --mapping m --log a --fail-on denied,no-rule", "simulate --rules r --mapping m --log a --fail-on denied,never",
		"healthcheck", "check --", "check -- --strict", "call -dd -- a=b",
	} {
		args := strings.Fields(text)
		want, wantName, wantWrong, _ := lineRead(t, kongs, args)
		got, name, wrong, _ := lineRead(t, parse, args)
		if name != wantName && wantWrong == "" || wrong != wantWrong {
			t.Errorf("%q: command %q, error %q; want %q, %q", text, name, wrong, wantName, wantWrong)
		}
		want.Serve.Adjusted, got.Serve.Adjusted = adjustments{}, adjustments{} // they point to the flags of different parsers
		if wantWrong == "" && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	for _, text := range []string{"--help", "call --help", "serve -h", "simulate --rules r --help"} {
		args := strings.Fields(text)
		_, _, _, want := lineRead(t, kongs, args)
		_, name, wrong, printed := lineRead(t, parse, args)
		// kong continues after its help, and may print it twice
		if name != "" || wrong != "" || printed == "" || !strings.HasPrefix(want, printed) {
			t.Errorf("%q: command %q, error %q, help\n%s\nwant\n%s", text, name, wrong, printed, want)
		}
	}
}

// The project uses no kong feature that parse leaves out: hooks, groups of flags, nested commands.
func TestNothingThatParseLeavesOut(t *testing.T) {
	c := new(cli)
	parser, err := newParser(c)
	if err != nil {
		t.Fatal(err)
	}
	commands := c.commands()
	if len(commands) != len(parser.Model.Children) {
		t.Errorf("%d commands, and kong knows %d", len(commands), len(parser.Model.Children))
	}
	hooks := func(what string, v reflect.Value) {
		for _, hook := range []string{"BeforeReset", "BeforeResolve", "BeforeApply", "AfterApply", "AfterRun", "Validate"} {
			if v.Addr().MethodByName(hook).IsValid() {
				t.Errorf("%s has the hook %s, which parse does not call", what, hook)
			}
		}
	}
	for _, n := range parser.Model.Children {
		if got := reflect.ValueOf(commands[n.Name]); !got.IsValid() || got.Pointer() != n.Target.Addr().Pointer() {
			t.Errorf("command %s runs something else", n.Name)
		}
		if len(n.Children) > 0 || n.Argument != nil {
			t.Errorf("command %s has commands of its own", n.Name)
		}
		hooks("command "+n.Name, n.Target)
		for _, v := range n.Values() {
			if v.Flag == parser.Model.HelpFlag && v.Flag != nil {
				continue
			}
			hooks(v.ShortSummary(), v.Target)
			if v.Flag != nil && len(v.Flag.Xor)+len(v.Flag.And)+len(v.Flag.LastWins) > 0 {
				t.Errorf("%s is in a group of flags", v.ShortSummary())
			}
			if kind := v.Target.Type(); v.Enum != "" && kind.Kind() != reflect.String && kind != reflect.TypeFor[[]string]() {
				t.Errorf("%s has an enum, and is %s", v.ShortSummary(), kind)
			}
		}
	}
}
