package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// overrideCommand is the subcommand that shows and changes overrides.
type overrideCommand struct {
	Action    string   `arg:"" enum:"set,rm,list,history,import,export" help:"set, rm, list, history, import or export."`
	Arguments []string `arg:"" optional:"" name:"argument" placeholder:"FILE" help:"For import, a file. For the others the caller: key=value,key2=value2. For set and rm exactly the descriptor that it sends."`

	Domain    string `short:"d" help:"Domain of the rules."`
	Rule      string `placeholder:"RULE" help:"Path or name of the rule. Unset: for set and rm the one that the descriptor matches, else all."`
	LimitName string `placeholder:"NAME" help:"Name of one of the rule's limits. Unset: the only one, or all."`

	Limit     *uint64 `group:"Numbers of set" placeholder:"N" help:"This many requests per unit."`
	Burst     uint64  `group:"Numbers of set" placeholder:"N" help:"Together with --limit: this burst."`
	Factor    float64 `group:"Numbers of set" placeholder:"F" help:"The rule's numbers times this."`
	Unlimited bool    `group:"Numbers of set" help:"Every request passes, and nothing is counted."`
	Block     bool    `group:"Numbers of set" help:"No request passes, and nothing is counted."`
	Expires   string  `group:"Numbers of set" placeholder:"TIME" help:"When it ends: after a time such as 90m, 24h or 7d, or at a time such as 2027-03-01T12:00:00Z."`
	NotBefore string  `group:"Numbers of set" placeholder:"TIME" help:"When it begins, written like --expires. Unset: at once."`

	Reset  bool   `group:"Numbers of set" help:"Clear the caller's counters of the rule too. Otherwise what is used stays used."`
	Reason string `placeholder:"TEXT" help:"Why, for people."`
	Expect *int64 `placeholder:"VERSION" help:"Fail unless the override has this version, as list shows it; 0: unless there is none."`
	DryRun bool   `help:"Change nothing: show which counters would change their verdict now."`
	Last   uint32 `default:"20" placeholder:"N" help:"How many changes history shows, at most 1000."`

	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*overrideCommand) about() about {
	return about{
		note: "An override gives one caller other numbers than its rule has, without a deployment. The rule must allow it (overridable), and the server must keep overrides (RATELIMITD_OVERRIDES). Where one region counts for all, set the override on a server of that region; the others name it.",
		examples: []example{
			{"200 requests per unit for one caller, for a day", "ratelimitd override set -d messaging to_number=2061234567 --limit 200 --expires 24h"},
			{"what would that change?", "ratelimitd override set -d messaging to_number=2061234567 --factor 2 --dry-run"},
			{"at once, although the caller has used up its limit", "ratelimitd override set -d messaging to_number=2061234567 --limit 200 --reset"},
			{"back to the rule", "ratelimitd override rm -d messaging to_number=2061234567"},
			{"which overrides are there?", "ratelimitd override list -d messaging"},
			{"into a file, and back", "ratelimitd override export > overrides.yaml && ratelimitd override import overrides.yaml"},
		},
		exits: []exitCode{
			{0, "Done, or shown."}, {1, "The server does not answer, or rejects the call; or the override has another version."},
			{2, "The command line, a setting or a file is invalid or missing."}, {exitNothing, "There is no such override, or no rule matches."},
		},
	}
}

// Run does what the action says.
func (o *overrideCommand) Run(ctx context.Context, s streams) error {
	if flags := o.unused(); len(flags) > 0 {
		return misuse(fmt.Errorf("%s takes no %s", o.Action, strings.Join(flags, ", ")))
	}
	if o.Action == "import" {
		return o.load(ctx, s)
	}
	var where []descriptor.Entry
	for i, text := range o.Arguments {
		more, err := entries.Parse(text)
		if err != nil {
			return misuse(fmt.Errorf("argument %d: %w", i+1, err))
		}
		where = append(where, more...)
	}
	if o.Action == "set" || o.Action == "rm" {
		return o.change(ctx, s, where)
	}
	if o.Rule != "" && o.Domain == "" {
		return misuse(errors.New("--rule needs --domain"))
	}
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	q := serviceclient.OverrideQuery{Domain: o.Domain, Rule: o.Rule, Where: where}
	switch o.Action {
	case "history":
		return o.history(ctx, s, client, q)
	case "export":
		return o.export(ctx, s, client, q)
	default:
		return o.list(ctx, s, client, q)
	}
}

// unused returns the flags that are given and that the action would ignore. What set and rm take is checked with the override.
func (o *overrideCommand) unused() (flags []string) {
	if o.Action == "set" || o.Action == "rm" {
		return nil
	}
	loads := o.Action == "import"
	for _, flag := range []struct {
		name          string
		given, ignore bool
	}{
		{"--domain", o.Domain != "", loads},
		{"--rule", o.Rule != "", loads},
		{"--limit-name", o.LimitName != "", true},
		{"--limit", o.Limit != nil, true},
		{"--burst", o.Burst != 0, true},
		{"--factor", o.Factor != 0, true},
		{"--unlimited", o.Unlimited, true},
		{"--block", o.Block, true},
		{"--expires", o.Expires != "", true},
		{"--not-before", o.NotBefore != "", true},
		{"--reset", o.Reset, true},
		{"--reason", o.Reason != "", !loads},
		{"--expect", o.Expect != nil, !loads},
		{"--dry-run", o.DryRun, !loads},
	} {
		if flag.given && flag.ignore {
			flags = append(flags, flag.name)
		}
	}
	return flags
}

// change writes or removes one override.
func (o *overrideCommand) change(ctx context.Context, s streams, of []descriptor.Entry) error {
	remove := o.Action == "rm"
	if o.Domain == "" || len(of) == 0 || len(o.Arguments) > 1 {
		return misuse(fmt.Errorf("write --domain and one descriptor: ratelimitd override %s -d DOMAIN key=value", o.Action))
	}
	change, err := o.override(of, remove)
	if err != nil {
		return misuse(err)
	}
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	if change.Rule == "" {
		found, _, err := client.Explain(ctx, o.Domain, of)
		if err != nil {
			return err
		}
		if found.Rule == nil {
			fmt.Fprintf(s.err, "ratelimitd: no rule of domain %q matches this descriptor: %s\n", o.Domain, found.Reason)
			return verdict(exitNothing)
		}
		change.Rule = found.Rule.Path
	}
	changes, err := client.ChangeOverrides(ctx, []serviceclient.Override{*change}, serviceclient.ChangeOptions{Remove: remove, DryRun: o.DryRun, Reset: o.Reset, Expect: o.Expect})
	if err != nil {
		return err
	}
	if err := o.show(s, changes); err != nil {
		return err
	}
	if remove && (len(changes) == 0 || changes[0].Before == nil) {
		return verdict(exitNothing)
	}
	return nil
}

func (o *overrideCommand) show(s streams, changes []serviceclient.OverrideChange) error {
	return o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteOverrideChanges(w, changes, o.Output.Color.on(w)) },
		func(w io.Writer) error { return serviceclient.WriteJSON(w, changes) })
}

// override is the override that the flags describe.
func (o *overrideCommand) override(of []descriptor.Entry, remove bool) (*serviceclient.Override, error) {
	c := &serviceclient.Override{
		Domain: o.Domain, Rule: o.Rule, Limit: o.LimitName, RequestsPerUnit: o.Limit, Burst: o.Burst, Factor: o.Factor,
		Unlimited: o.Unlimited, Blocked: o.Block, Reason: o.Reason,
	}
	for _, e := range of {
		c.Entries = append(c.Entries, serviceclient.Entry{Key: e.Key, Value: e.Value})
	}
	kinds := 0
	for _, given := range []bool{o.Limit != nil, o.Factor != 0, o.Unlimited, o.Block} {
		if given {
			kinds++
		}
	}
	switch {
	case remove && (kinds > 0 || o.Burst != 0 || o.Expires != "" || o.NotBefore != ""):
		return nil, errors.New("rm takes no numbers and no times")
	case remove && o.Reset:
		return nil, errors.New("rm takes no --reset: afterwards, use ratelimitd reset")
	case !remove && kinds != 1:
		return nil, errors.New("write one of --limit, --factor, --unlimited and --block")
	}
	var err error
	now := time.Now()
	if c.ExpiresAt, err = parseInstant("--expires", o.Expires, now); err != nil {
		return nil, err
	}
	c.NotBefore, err = parseInstant("--not-before", o.NotBefore, now)
	return c, err
}

// parseInstant reads a time, or the time after now.
func parseInstant(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, strings.ToUpper(text)); err == nil {
		return t.UTC().Truncate(time.Second), nil
	}
	after, err := time.ParseDuration(text)
	if number, unit := text[:len(text)-1], text[len(text)-1:]; err != nil && (unit == "d" || unit == "w") {
		var n uint64
		if n, err = strconv.ParseUint(number, 10, 16); err == nil {
			after = time.Duration(n) * shortUnits[unit].Length()
		}
	}
	if err != nil || after <= 0 {
		return time.Time{}, fmt.Errorf("%s %s: write a time from now such as 90m, 24h or 7d, or a time such as 2027-03-01T12:00:00Z", flag, text)
	}
	return now.Add(after).UTC().Truncate(time.Second), nil
}

func (o *overrideCommand) list(ctx context.Context, s streams, client *serviceclient.Client, q serviceclient.OverrideQuery) error {
	all := []serviceclient.Override{}
	if err := client.ListOverrides(ctx, q, func(page []serviceclient.Override) error {
		all = append(all, page...)
		return nil
	}); err != nil {
		return err
	}
	err := o.Output.write(s.out,
		func(w io.Writer) error {
			if len(all) == 0 {
				_, err := fmt.Fprintln(w, "no overrides")
				return err
			}
			return serviceclient.WriteOverrides(w, all, true)
		},
		func(w io.Writer) error { return serviceclient.WriteJSON(w, all) })
	if err == nil && len(all) == 0 {
		return verdict(exitNothing)
	}
	return err
}

func (o *overrideCommand) history(ctx context.Context, s streams, client *serviceclient.Client, q serviceclient.OverrideQuery) error {
	if o.Last < 1 || o.Last > 1000 {
		return misuse(fmt.Errorf("--last %d: use a number from 1 to 1000", o.Last))
	}
	events, err := client.OverrideHistory(ctx, q, o.Last)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteOverrideHistory(w, events, o.Output.Color.on(w)) },
		func(w io.Writer) error { return serviceclient.WriteJSON(w, events) })
}

// export writes a file that import reads: YAML, or with -o json a line of JSON for each override. import reads YAML of up to
// override.MaxFileSize, so where there is more, each override is one line, which is YAML too.
func (o *overrideCommand) export(ctx context.Context, s streams, client *serviceclient.Client, q serviceclient.OverrideQuery) error {
	if o.Output.JSON || o.Output.Output == "json" {
		return exportJSON(ctx, s.out, client, q)
	}
	var (
		all    []override.Override // until they are known to be too many
		size   int
		inLine bool
		text   []byte
	)
	err := client.ListOverrides(ctx, q, func(page []serviceclient.Override) error {
		for i := range page {
			all = append(all, recordOf(&page[i]))
		}
		if !inLine {
			if size += len(override.AppendYAML(nil, all[len(all)-len(page):])); size <= override.MaxFileSize {
				return nil
			}
			text, inLine = append(text, "overrides:\n"...), true
		}
		for i := range all {
			text = override.AppendLine(text, &all[i])
		}
		_, err := s.out.Write(text)
		all, text = all[:0], text[:0]
		return err
	})
	if err == nil && !inLine {
		_, err = s.out.Write(override.AppendYAML(nil, all))
	}
	return err
}

func exportJSON(ctx context.Context, w io.Writer, client *serviceclient.Client, q serviceclient.OverrideQuery) error {
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	return client.ListOverrides(ctx, q, func(page []serviceclient.Override) error {
		for i := range page {
			if err := lines.Encode(&page[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// overrideOf turns a record of a file into an override for a server.
func overrideOf(r *override.Override) serviceclient.Override {
	c := serviceclient.Override{
		Domain: r.Domain, Rule: r.Rule, Limit: r.Limit, Burst: r.Burst, Reason: r.Reason,
		Unlimited: r.Kind == override.Unlimited, Blocked: r.Kind == override.Blocked,
	}
	for _, e := range r.Entries {
		c.Entries = append(c.Entries, serviceclient.Entry{Key: e.Key, Value: e.Value})
	}
	switch r.Kind {
	case override.Replace:
		c.RequestsPerUnit = &r.Requests
	case override.Scale:
		c.Factor = float64(r.Requests) / override.One
	}
	if r.NotBefore != 0 {
		c.NotBefore = time.Unix(r.NotBefore, 0).UTC()
	}
	if r.ExpiresAt != 0 {
		c.ExpiresAt = time.Unix(r.ExpiresAt, 0).UTC()
	}
	return c
}

// recordOf turns an override of a server into a record of a file.
func recordOf(c *serviceclient.Override) override.Override {
	r := override.Override{
		Identity: override.Identity{Domain: c.Domain, Rule: c.Rule, Limit: c.Limit},
		Reason:   c.Reason, Author: c.Author, Version: c.Version, Changed: c.ChangedAt,
	}
	for _, e := range c.Entries {
		r.Entries = append(r.Entries, descriptor.Entry{Key: e.Key, Value: e.Value})
	}
	switch {
	case c.Unlimited:
		r.Kind = override.Unlimited
	case c.Blocked:
		r.Kind = override.Blocked
	case c.RequestsPerUnit != nil:
		r.Kind, r.Requests, r.Burst = override.Replace, *c.RequestsPerUnit, c.Burst
	default:
		r.Kind, r.Requests = override.Scale, uint64(c.Factor*override.One+0.5)
	}
	if !c.NotBefore.IsZero() {
		r.NotBefore = c.NotBefore.Unix()
	}
	if !c.ExpiresAt.IsZero() {
		r.ExpiresAt = c.ExpiresAt.Unix()
	}
	return r
}
