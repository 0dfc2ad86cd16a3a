package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

// manCommand is the subcommand that writes the manual pages. Releases contain them.
type manCommand struct {
	Dir string `arg:"" help:"Folder to write to. It is made if it does not exist."`
}

func (*manCommand) about() about {
	return about{
		examples: []example{{"into the folder that man searches first", "ratelimitd man ~/.local/share/man/man1"}},
		exits:    []exitCode{{0, "The pages were written."}, {1, "A page cannot be written."}, {2, "The command line is invalid."}},
	}
}

// Run writes a page for the program, and one for each command.
func (o *manCommand) Run(context.Context, streams) error {
	if err := os.MkdirAll(o.Dir, 0o777); err != nil {
		return fmt.Errorf("write manual: %w", err)
	}
	c := new(cli)
	model, err := c.model()
	if err != nil {
		return err
	}
	pages := manual{commands: c.commands(), build: thisBuild()}
	for name, text := range pages.all(model) {
		err := writeFile(filepath.Join(o.Dir, name), func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})
		if err != nil {
			return fmt.Errorf("write manual: %w", err)
		}
	}
	return nil
}

// manual makes manual pages in the macros of man(7).
type manual struct {
	commands map[string]runner
	build    build
}

// all are the pages by the names of their files.
func (m *manual) all(model *kong.Application) map[string]string {
	pages := map[string]string{model.Name + ".1": m.overview(model)}
	for _, n := range visible(model) {
		pages[model.Name+"-"+n.Name+".1"] = m.command(model, n)
	}
	return pages
}

func (m *manual) overview(model *kong.Application) string {
	p := m.begin(model.Name, "decides whether requests may pass")
	p.section("SYNOPSIS")
	p.line(".B %s", model.Name)
	p.text("[COMMAND] [FLAGS]")
	p.section("DESCRIPTION")
	p.text(model.Help)
	p.text("Without a command it runs serve. Each setting of serve is a flag and an environment variable.")
	group := ""
	for _, n := range visible(model) {
		if title := n.Group.Title; title != group {
			group = title
			p.section(strings.ToUpper(group))
		}
		p.line(".TP\n.BR %s-%s (1)", model.Name, escaped(n.Name))
		p.text(n.Help)
	}
	p.section("EXAMPLE")
	p.example(overviewExample)
	return p.String()
}

func (m *manual) command(model *kong.Application, n *kong.Node) string {
	p := m.begin(model.Name+"-"+n.Name, strings.TrimSuffix(n.Help, "."))
	p.section("SYNOPSIS")
	p.line(".B %s", model.Name)
	p.text(n.Summary())
	p.section("DESCRIPTION")
	p.text(n.Help)
	c := m.commands[n.Name]
	if note := c.about().note; note != "" {
		p.text(note)
	}
	p.section("EXAMPLES")
	for _, e := range c.about().examples {
		p.text(strings.ToUpper(e.what[:1]) + e.what[1:] + ":")
		p.example(e.line)
	}
	if len(n.Positional) > 0 {
		p.section("ARGUMENTS")
		for _, a := range n.Positional {
			p.tagged(a.Summary(), describe(a))
		}
	}
	p.section("OPTIONS")
	group := ""
	for _, f := range n.Flags {
		if f.Hidden {
			continue
		}
		if f.Group != nil && f.Group.Title != group {
			group = f.Group.Title
			p.line(".SS %s", escaped(group))
		}
		name := "--" + f.Name
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		p.tagged(name, describe(f.Value))
	}
	p.section("EXIT STATUS")
	for _, e := range exitCodes(n.Name, c) {
		p.tagged(fmt.Sprint(e.code), e.meaning)
	}
	p.section("SEE ALSO")
	p.line(".BR %s (1)", model.Name)
	return p.String()
}

// manPage is a page that is being written.
type manPage struct{ strings.Builder }

func (m *manual) begin(name, what string) *manPage {
	p := new(manPage)
	day, _, _ := strings.Cut(m.build.Date, "T")
	p.line(".TH %s 1 \"%s\" \"ratelimitd %s\"", strings.ToUpper(escaped(name)), escaped(day), escaped(m.build.Version))
	p.section("NAME")
	p.line("%s \\- %s", escaped(name), escaped(what))
	return p
}

func (p *manPage) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *manPage) section(title string) { p.line(".SH %s", escaped(title)) }

func (p *manPage) text(text string) { p.line("%s\n.P", escaped(text)) }

func (p *manPage) tagged(tag, text string) { p.line(".TP\n.B %s\n%s", escaped(tag), escaped(text)) }

func (p *manPage) example(line string) { p.line(".RS 4\n.nf\n%s\n.fi\n.RE\n.P", escaped(line)) }

// escaped writes a text so that roff shows it unchanged.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ", `"`, `\(dq`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
