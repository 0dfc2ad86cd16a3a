package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// about is the help text of a command, except for its flags.
type about struct {
	note     string   // one paragraph; empty if the flags explain everything
	common   []string // the flags that its help shows, if it has too many to show all
	examples []example
	exits    []exitCode // without the code for an interruption, which all commands but serve share
}

// example is a command line and its purpose.
type example struct{ what, line string }

// exitCode is an exit code of a command and its meaning.
type exitCode struct {
	code    int
	meaning string
}

// interrupted is the exit code of a command that Ctrl-C ended.
var interrupted = exitCode{130, "Interrupted by Ctrl-C."}

// brief are the commands that end before anybody could interrupt them.
var brief = []string{"healthcheck", "schema", "version"}

// describedBy adds the commands' help texts to the model.
func describedBy(model *kong.Application, commands map[string]runner) {
	model.HelpFlag.Help = "Show this help."
	for _, n := range model.Children {
		about := commands[n.Name].about()
		var b strings.Builder
		if about.note != "" {
			fmt.Fprintf(&b, "%s\n\n", about.note)
		}
		b.WriteString("Examples:\n\n")
		for _, e := range about.examples {
			fmt.Fprintf(&b, "    # %s\n    %s\n", e.what, e.line)
		}
		n.Detail = b.String()
		for _, f := range n.Flags {
			switch {
			case f.Group == nil || !strings.HasSuffix(f.Group.Title, asServe):
			case f.Tag.Has("always"):
				f.Group = nil
			default:
				f.Hidden = true
			}
		}
	}
}

// asServe ends the titles of the groups of flags that another command shares with serve. All these flags work, and the
// help of serve lists them. The help of the other command lists only the flags with the tag always.
const asServe = ", as in serve"

// exitCodes returns all exit codes of a command.
func exitCodes(name string, c runner) []exitCode {
	all := c.about().exits
	if name != "serve" && !slices.Contains(brief, name) {
		all = append(slices.Clone(all), interrupted)
	}
	return all
}

// printHelp prints the help of a command, or of the program.
func (c *cli) printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	n := ctx.Selected()
	if n == nil || !named(ctx) {
		return printOverview(ctx.Stdout, ctx.Model)
	}
	about := c.commands()[n.Name].about()
	end := "\nExit codes\n"
	if len(about.common) > 0 && !c.EverySetting {
		end = fmt.Sprintf("\nThese settings are enough for most installations. %q lists all %d.\n%s",
			ctx.Model.Name+" help "+everySetting, showOnly(n, about.common), end)
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	if _, err := fmt.Fprint(ctx.Stdout, end); err != nil {
		return err
	}
	for _, e := range exitCodes(n.Name, c.commands()[n.Name]) {
		for i, line := range wrapped(e.meaning, 72) {
			code := ""
			if i == 0 {
				code = fmt.Sprint(e.code)
			}
			if _, err := fmt.Fprintf(ctx.Stdout, "  %-4s  %s\n", code, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// everySetting is the word after help that shows all flags of serve.
const everySetting = "settings"

// showOnly hides all flags of a command but these, and returns how many it had shown.
func showOnly(n *kong.Node, names []string) (shown int) {
	for _, f := range n.Flags {
		if f.Hidden || f.Name == "help" {
			continue
		}
		shown++
		f.Hidden = !slices.Contains(names, f.Name)
	}
	return shown
}

// named reports whether the command line names its command. Without a name it is serve's.
func named(ctx *kong.Context) bool {
	return slices.ContainsFunc(ctx.Args, func(a string) bool { return a == ctx.Selected().Name })
}

// printOverview prints the help of the program: its commands by group.
func printOverview(w io.Writer, model *kong.Application) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s [COMMAND] [FLAGS]\n", model.Help, model.Name)
	group := ""
	for _, n := range visible(model) {
		if title := n.Group.Title; title != group {
			group = title
			fmt.Fprintf(&b, "\n%s\n", group)
		}
		fmt.Fprintf(&b, "  %-12s %s\n", n.Name, strings.TrimSuffix(n.Help, "."))
	}
	fmt.Fprintf(&b, "\nStart with: %s\nRun \"%s COMMAND --help\" for details.\nDocumentation: %s\n", overviewExample,
		model.Name, documentation)
	_, err := io.WriteString(w, b.String())
	return err
}

const (
	overviewExample = "ratelimitd --rules config/domains"
	documentation   = "https://github.com/ratelimitd/ratelimitd"
)

// visible returns the commands that the help lists.
func visible(model *kong.Application) []*kong.Node {
	return slices.DeleteFunc(slices.Clone(model.Children), func(n *kong.Node) bool { return n.Hidden })
}

// wrapped breaks a text into lines of at most width bytes. A longer word gets a separate line.
func wrapped(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// seeHelp names the help that lists the possible command lines.
func seeHelp(model *kong.Application, args []string) string {
	command := "serve"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command = args[0]
	}
	if !slices.ContainsFunc(model.Children, func(n *kong.Node) bool { return n.Name == command }) {
		return model.Name + " --help lists the commands"
	}
	if command == "serve" {
		return fmt.Sprintf("%s help %s lists its flags", model.Name, everySetting)
	}
	return fmt.Sprintf("%s %s --help lists its flags, with examples", model.Name, command)
}
