package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// mappingOptions describe the log: in a file, or, for the common cases, only with flags.
type mappingOptions struct {
	Mapping string `placeholder:"FILE" help:"YAML file that maps lines of the log to requests. - is the standard input."`

	Format      string   `oneof:"envoy,nginx,apache,json,text" placeholder:"FORMAT" group:"The log, if you write no mapping" help:"Format of the log: envoy, nginx, apache, json or text."`
	Descriptors []string `name:"descriptor" sep:"none" placeholder:"KEY=SOURCE,..." group:"The log, if you write no mapping" help:"Descriptor of each request. SOURCE is ip, method or path (with envoy, nginx and apache), a field of the log, header:NAME, or value:TEXT for a fixed text. May be repeated."`
	Domain      string   `short:"d" placeholder:"DOMAIN" group:"The log, if you write no mapping" help:"Domain of the requests. Default: the only domain of the rules."`
	Pattern     string   `placeholder:"TEXT" group:"The log, if you write no mapping" help:"How lines are written: nginx's log_format or Envoy's text_format. Default: the usual one of the format."`
	Time        string   `placeholder:"FIELD[=LAYOUT]" group:"The log, if you write no mapping" help:"Field with the time, for json and text. LAYOUT: rfc3339 (default), unix, unix_ms or clf."`
}

// mapping reads the mapping. The rules have the domain, unless a flag has it.
func (o *mappingOptions) mapping(rules *descriptor.Tree) (*accesslog.Mapping, error) {
	flags, err := o.used()
	if err != nil {
		return nil, err
	}
	if !flags {
		m, errs := o.load()
		return m, unusable("the mapping "+stdin.NameOf(o.Mapping), errs)
	}
	parts, err := o.parts(rules)
	if err != nil {
		return nil, err
	}
	m, errs := accesslog.ParseParts(parts)
	return m, unusable("the log's description", errs)
}

// used reports whether flags describe the log. It is an error if --mapping describes it too.
func (o *mappingOptions) used() (bool, error) {
	given := ""
	for _, f := range []struct {
		name string
		set  bool
	}{{"--format", o.Format != ""}, {"--descriptor", len(o.Descriptors) > 0}, {"--domain", o.Domain != ""},
		{"--pattern", o.Pattern != ""}, {"--time", o.Time != ""}} {
		if f.set && given == "" {
			given = f.name
		}
	}
	switch {
	case o.Mapping != "" && given != "":
		return false, fmt.Errorf("%s is given together with --mapping, which has it already: use one of them", given)
	case o.Mapping != "":
		return false, nil
	case o.Format == "" || len(o.Descriptors) == 0:
		return false,
			errors.New("what the lines of the log mean is not known: use --format and --descriptor, such as --format nginx " +
				"--descriptor remote_address=ip, or --mapping FILE")
	}
	return true, nil
}

func (o *mappingOptions) load() (*accesslog.Mapping, []*yamlform.Error) {
	if o.Mapping != stdin.Name {
		return accesslog.LoadMapping(o.Mapping)
	}
	data, err := stdin.ReadFile(o.Mapping)
	if err != nil {
		return nil, []*yamlform.Error{{File: stdin.Shown, Msg: err.Error()}}
	}
	return accesslog.ParseMapping(stdin.Shown, data)
}

func unusable(what string, errs []*yamlform.Error) error {
	if len(errs) == 0 {
		return nil
	}
	all := make([]error, len(errs))
	for i, e := range errs {
		all[i] = e
	}
	return fmt.Errorf("%s cannot be used:\n%w", what, errors.Join(all...))
}

// parts writes the flags as the lines of a mapping.
func (o *mappingOptions) parts(rules *descriptor.Tree) ([]accesslog.Part, error) {
	domain := o.Domain
	if domain == "" {
		if rules.Domains() != 1 {
			return nil, fmt.Errorf("the rules have %d domains: use --domain to name the domain of the requests", rules.Domains())
		}
		for d := range rules.EachDomain() {
			domain = d.Name
		}
	}
	parts := []accesslog.Part{{From: "--format " + o.Format, YAML: "format: " + o.Format},
		{From: "--domain " + domain, YAML: "domain: " + inYAML(domain)}}
	if o.Pattern != "" {
		parts = append(parts, accesslog.Part{From: "--pattern", YAML: "pattern: " + inYAML(o.Pattern)})
	}
	if o.Time != "" {
		field, layout, has := strings.Cut(o.Time, "=")
		text := "time: {field: " + inYAML(field)
		if has {
			text += ", layout: " + inYAML(layout)
		}
		parts = append(parts, accesslog.Part{From: "--time " + o.Time, YAML: text + "}"})
	}
	parts = append(parts, accesslog.Part{From: "--descriptor", YAML: "descriptors:"})
	for _, d := range o.Descriptors {
		all, err := entries.Parse(d)
		if err != nil {
			return nil, fmt.Errorf("--descriptor %s: %w", d, err)
		}
		written := make([]string, len(all))
		for i, e := range all {
			written[i] = "{key: " + inYAML(e.Key) + ", " + o.source(e.Value) + "}"
		}
		parts = append(parts, accesslog.Part{From: "--descriptor " + d, YAML: "- [" + strings.Join(written, ", ") + "]"})
	}
	return parts, nil
}

// source writes where the value of an entry comes from.
func (o *mappingOptions) source(text string) string {
	if kind, name, is := strings.Cut(text, ":"); is && (kind == "header" || kind == "value" || kind == "field") {
		return kind + ": " + inYAML(name)
	}
	if o.Format == "envoy" || o.Format == "nginx" || o.Format == "apache" {
		switch text {
		case "ip":
			if o.Format == "envoy" {
				return "header: x-forwarded-for, part: last" // its default format has no address of the peer
			}
			return "field: remote_addr"
		case "method":
			return `header: ":method"`
		case "path":
			return `header: ":path", part: path`
		}
	}
	return "field: " + inYAML(text)
}

// inYAML quotes a text as JSON does, which YAML reads.
func inYAML(text string) string {
	quoted, _ := json.Marshal(text) // a text cannot fail
	return string(quoted)
}
