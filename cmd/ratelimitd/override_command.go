package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// overrideCommand is the subcommand that shows and changes overrides.
type overrideCommand struct {
	Action    string   `arg:"" enum:"set,rm,list,history,import,export" help:"set, rm, list, history, import or export."`
	Arguments []string `arg:"" optional:"" name:"argument" placeholder:"FILE" help:"For import: a file. For set and rm: exactly the descriptor that the customer sends, key=value,key2=value2. Otherwise: some of its entries."`

	Domain    string `short:"d" help:"Domain of the rules."`
	Rule      string `placeholder:"RULE" help:"Path or name of the rule. Unset: the one that the descriptor matches; for list and history, all."`
	LimitName string `placeholder:"NAME" help:"Name of one of the rule's limits. Unset: the only one, or all."`

	Limit     *uint64 `group:"Flags of set" placeholder:"N" help:"New requests per unit."`
	Burst     uint64  `group:"Flags of set" placeholder:"N" help:"New burst, together with --limit."`
	Factor    float64 `group:"Flags of set" placeholder:"F" help:"Multiply the rule's numbers by this."`
	Unlimited bool    `group:"Flags of set" help:"Let every request pass, and count nothing."`
	Block     bool    `group:"Flags of set" help:"Deny every request, and count nothing."`
	Expires   string  `group:"Flags of set" placeholder:"TIME" help:"When the override ends: a duration such as 90m, 24h or 7d, or a time such as 2027-03-01T12:00:00Z."`
	NotBefore string  `group:"Flags of set" placeholder:"TIME" help:"When it starts, written like --expires. Unset: now."`

	Reset  bool   `group:"Flags of set" help:"Also clear the customer's counters of this rule."`
	Reason string `placeholder:"TEXT" help:"Why you set it, for your colleagues."`
	Expect *int64 `placeholder:"VERSION" help:"Fail unless list shows this version. 0: fail if the override exists."`
	DryRun bool   `help:"Change nothing. Show which counters would answer differently."`
	Last   uint32 `default:"20" placeholder:"N" help:"How many changes history shows, up to 1000."`

	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*overrideCommand) about() about {
	return about{
		note: "An override changes one customer's numbers without a deployment. The rule needs overridable, and the server " +
			"RATELIMITD_OVERRIDES. If the limit has a home region, ask a server in that region. The others name the region.",
		examples: []example{
			{"give one customer 200 requests per unit for a day",
				"ratelimitd override set -d messaging to_number=2061234567 --limit 200 --expires 24h"},
			{"show what a change would do", "ratelimitd override set -d messaging to_number=2061234567 --factor 2 --dry-run"},
			{"let a customer through who has used up the limit",
				"ratelimitd override set -d messaging to_number=2061234567 --limit 200 --reset"},
			{"go back to the rule", "ratelimitd override rm -d messaging to_number=2061234567"},
			{"list all overrides of a domain", "ratelimitd override list -d messaging"},
			{"write overrides to a file, and read them back",
				"ratelimitd override export > overrides.yaml && ratelimitd override import overrides.yaml"},
		},
		exits: []exitCode{
			{0, "Done."}, {1, "The server does not answer or rejects the call, or the override has another version."},
			{2, "The command line, a setting or a file is invalid or missing."},
			{exitNothing, "There is no such override, or no rule matches."},
		},
	}
}

// Run executes the action.
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
	with := make(map[string]string, len(where))
	for _, e := range where {
		with[e.Key] = e.Value
	}
	list := &adminv1.OverrideServiceListRequest{Domain: o.Domain, Rule: o.Rule, Where: with}
	switch o.Action {
	case "history":
		return o.history(ctx, s, client, &adminv1.OverrideServiceHistoryRequest{Domain: o.Domain, Rule: o.Rule, Where: with,
			PageSize: o.Last})
	case "export":
		return o.export(ctx, s, client, list)
	default:
		return o.list(ctx, s, client, list)
	}
}

// unused returns the flags that are given but that the action would ignore. The flags of set and rm are checked with
// the override.
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
	writes := []*adminv1.OverrideWrite{{Override: change, ExpectVersion: o.Expect}}
	var changes []*adminv1.OverrideChange
	if remove {
		changes, err = client.RemoveOverrides(ctx, &adminv1.OverrideServiceRemoveRequest{Writes: writes, DryRun: o.DryRun})
	} else {
		changes, err = client.SetOverrides(ctx, &adminv1.OverrideServiceSetRequest{Writes: writes, DryRun: o.DryRun,
			ResetCounters: o.Reset})
	}
	if err != nil {
		return err
	}
	if err := o.show(s, changes); err != nil {
		return err
	}
	if remove && (len(changes) == 0 || changes[0].GetBefore() == nil) {
		return verdict(exitNothing)
	}
	return nil
}

func (o *overrideCommand) show(s streams, changes []*adminv1.OverrideChange) error {
	return o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteOverrideChanges(w, changes, o.Output.Color.on(w)) },
		func(w io.Writer) error {
			return serviceclient.WriteMessage(w, &adminv1.OverrideServiceSetResponse{Changes: changes})
		})
}

// override returns the override that the flags describe.
func (o *overrideCommand) override(of []descriptor.Entry, remove bool) (*adminv1.Override, error) {
	c := &adminv1.Override{
		Domain: o.Domain, Rule: o.Rule, Limit: o.LimitName, Entries: serviceclient.Entries(of), RequestsPerUnit: o.Limit,
		Burst:  o.Burst,
		Factor: o.Factor, Unlimited: o.Unlimited, Blocked: o.Block, Reason: o.Reason,
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

// parseInstant reads a time, or the time after now; nil for no text.
func parseInstant(flag, text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339, strings.ToUpper(text)); err == nil {
		return timestamppb.New(t.Truncate(time.Second)), nil
	}
	after, err := time.ParseDuration(text)
	if number, unit := text[:len(text)-1], text[len(text)-1:]; err != nil && (unit == "d" || unit == "w") {
		var n uint64
		if n, err = strconv.ParseUint(number, 10, 16); err == nil {
			after = time.Duration(n) * shortUnits[unit].Length()
		}
	}
	if err != nil || after <= 0 {
		return nil, fmt.Errorf("%s %s: write a time from now such as 90m, 24h or 7d, or a time such as 2027-03-01T12:00:00Z",
			flag, text)
	}
	return timestamppb.New(now.Add(after).Truncate(time.Second)), nil
}

func (o *overrideCommand) list(ctx context.Context, s streams, client *serviceclient.Client,
	r *adminv1.OverrideServiceListRequest) error {
	all := &adminv1.OverrideServiceListResponse{}
	if err := client.ListOverrides(ctx, r, func(page []*adminv1.Override) error {
		all.Overrides = append(all.Overrides, page...)
		return nil
	}); err != nil {
		return err
	}
	none := len(all.GetOverrides()) == 0
	err := o.Output.write(s.out,
		func(w io.Writer) error {
			if none {
				_, err := fmt.Fprintln(w, "no overrides")
				return err
			}
			return serviceclient.WriteOverrides(w, all.GetOverrides())
		},
		func(w io.Writer) error { return serviceclient.WriteMessage(w, all) })
	if err == nil && none {
		return verdict(exitNothing)
	}
	return err
}

func (o *overrideCommand) history(ctx context.Context, s streams, client *serviceclient.Client,
	r *adminv1.OverrideServiceHistoryRequest) error {
	if o.Last < 1 || o.Last > 1000 {
		return misuse(fmt.Errorf("--last %d: use a number from 1 to 1000", o.Last))
	}
	found, err := client.OverrideHistory(ctx, r)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error {
			return serviceclient.WriteOverrideHistory(w, found.GetEvents(), o.Output.Color.on(w))
		},
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
}

// export writes a file that import reads: YAML, or with -o json one override on each line. import reads YAML of up to
// override.MaxFileSize, so a larger export has the form of lines too.
func (o *overrideCommand) export(ctx context.Context, s streams, client *serviceclient.Client,
	r *adminv1.OverrideServiceListRequest) error {
	var (
		all     []override.Override // discarded once the export is too large for YAML
		size    int
		inLines = o.Output.JSON || o.Output.Output == "json"
		text    []byte
	)
	err := client.ListOverrides(ctx, r, func(page []*adminv1.Override) error {
		for _, m := range page {
			one, err := overridepb.Read(m)
			if err != nil {
				return fmt.Errorf("read an override of the server: %w", err)
			}
			all = append(all, *one)
		}
		if !inLines {
			size += len(override.AppendYAML(nil, all[len(all)-len(page):]))
			if inLines = size > override.MaxFileSize; !inLines {
				return nil
			}
		}
		for i := range all {
			text = append(override.AppendJSON(text, &all[i]), '\n')
		}
		_, err := s.out.Write(text)
		all, text = all[:0], text[:0]
		return err
	})
	if err == nil && !inLines {
		_, err = s.out.Write(override.AppendYAML(nil, all))
	}
	return err
}
