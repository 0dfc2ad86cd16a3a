package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Overrides show and change operators' overrides.
type Overrides struct {
	Source override.Source // nil disables overrides
	Name   string          // name of the source: redis, or a file
	Up     func() bool     // whether the source answers; nil means always

	InForce func() *override.Set // the set that decisions use
	Peek    func(ctx context.Context, now time.Time, domain string, d *limiter.Descriptor,
		with *override.Set) (limiter.Counters, error)
}

// overrides is the ratelimitd.admin.v1.OverrideService, an adminconnect.OverrideServiceHandler.
type overrides struct {
	Overrides

	tree     func() *descriptor.Tree
	counters *counters
	log      *slog.Logger
}

var errOverridesOff = connect.NewError(connect.CodeFailedPrecondition,
	errors.New("overrides are off: set RATELIMITD_OVERRIDES (--overrides) "+
		"to redis, or to the path of a YAML file"))

// Set implements adminconnect.OverrideServiceHandler.
func (o *overrides) Set(ctx context.Context,
	req *adminv1.OverrideServiceSetRequest) (*adminv1.OverrideServiceSetResponse, error) {
	changes, err := o.change(ctx, req.GetWrites(), how{dry: req.GetDryRun(), reset: req.GetResetCounters()})
	if err != nil {
		return nil, err
	}
	return &adminv1.OverrideServiceSetResponse{Changes: changes}, nil
}

// Remove implements adminconnect.OverrideServiceHandler.
func (o *overrides) Remove(ctx context.Context,
	req *adminv1.OverrideServiceRemoveRequest) (*adminv1.OverrideServiceRemoveResponse, error) {
	changes, err := o.change(ctx, req.GetWrites(), how{remove: true, dry: req.GetDryRun()})
	if err != nil {
		return nil, err
	}
	return &adminv1.OverrideServiceRemoveResponse{Changes: changes}, nil
}

// how has the options of a call that changes overrides.
type how struct {
	remove bool
	dry    bool // dry run: changes nothing, and shows the effects
	reset  bool // clears the customers' counters afterwards
}

func (o *overrides) change(ctx context.Context, writes []*adminv1.OverrideWrite,
	how how) ([]*adminv1.OverrideChange, error) {
	if o.Source == nil {
		return nil, errOverridesOff
	}
	now := time.Now()
	edits, err := o.edits(now, writes, how.remove)
	if err != nil {
		return nil, err
	}
	if how.dry {
		return o.preview(ctx, now, edits, how.reset)
	}
	changes, err := o.write(ctx, edits)
	if err != nil || !how.reset {
		return changes, err
	}
	for i := range edits {
		found, err := o.counters.clear(ctx, now, edits[i].Domain, &limiter.Descriptor{Entries: edits[i].Entries})
		if err != nil {
			return nil, connect.NewError(connect.Code(grpcstatus.Code(err)),
				fmt.Errorf("the overrides are written, but the counters from writes[%d] on may not be cleared: %s", i,
					grpcstatus.Message(err)))
		}
		changes[i].Cleared = counterMessages(now, &found)
	}
	return changes, nil
}

// edits checks all writes before any is made.
func (o *overrides) edits(now time.Time, writes []*adminv1.OverrideWrite, remove bool) ([]override.Edit, error) {
	tree := o.tree()
	switch {
	case tree == nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition,
			errors.New("no rules are loaded, so no override can be checked against them"))
	case len(writes) == 0:
		return nil, invalid("writes must not be empty")
	case len(writes) > override.MaxEdits:
		return nil, invalid("writes: more than %d: send them in several calls", override.MaxEdits)
	}
	edits := make([]override.Edit, len(writes))
	seen := make(map[string]int, len(writes))
	for i, w := range writes {
		e := &edits[i]
		read, err := readOverride(now, w.GetOverride(), remove)
		if err == nil && !remove {
			err = override.Resolve(tree, read)
		} else if err == nil {
			toRemove(tree, o.InForce(), read)
			err = read.Validate()
		}
		if err != nil {
			return nil, invalid("writes[%d].override.%w", i, err)
		}
		if !remove { // overrides from before a home moved can be removed everywhere
			if err := o.counters.elsewhere(read.Domain, read.Entries, "set the override"); err != nil {
				return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("writes[%d].override.entries: %w", i, err))
			}
		}
		e.Override, e.Remove = *read, remove
		if w.ExpectVersion != nil {
			e.Expect = proto.Int64(w.GetExpectVersion())
		}
		key := read.Domain + "\x00" + read.String()
		if first, twice := seen[key]; twice {
			return nil, invalid("writes[%d] and writes[%d] are about the same override", first, i)
		}
		seen[key] = i
	}
	return edits, nil
}

// toRemove completes the identity of an override that is removed. If no rule is like it any more, it stays as it was
// sent. The limit and the values stay as they were sent too, if the override was written when the rule had several
// limits, or before it grouped the values.
func toRemove(tree *descriptor.Tree, set *override.Set, o *override.Override) {
	o.Numbers = override.Numbers{Kind: override.Blocked} // every overridable rule may have it
	complete := *o
	if override.Resolve(tree, &complete) != nil {
		return
	}
	sent := *o
	o.Identity = complete.Identity
	for _, limit := range []string{cmp.Or(sent.Limit, complete.Limit), complete.Limit} {
		for _, values := range [][]descriptor.Entry{complete.Entries, sent.Entries} {
			old := override.Identity{Domain: complete.Domain, Rule: complete.Rule, Limit: limit, Entries: values}
			if set.Get(&old) != nil {
				o.Identity = old
				return
			}
		}
	}
}

// write makes the changes.
func (o *overrides) write(ctx context.Context, edits []override.Edit) ([]*adminv1.OverrideChange, error) {
	who := actorOf(ctx)
	before := make([]*override.Override, len(edits))
	set := o.InForce()
	for i := range edits {
		if n := set.Get(&edits[i].Identity); n != nil {
			before[i] = &override.Override{Identity: edits[i].Identity, Numbers: *n}
		}
	}
	written, err := o.Source.Write(ctx, who.author(), edits)
	if err != nil {
		audited := err
		if errors.Is(err, override.ErrReadOnly) {
			audited = override.ErrReadOnly // leaves out the YAML, which only the client gets
		}
		o.audit(ctx, &who, edits, before, nil, audited)
		return nil, overrideError(err)
	}
	o.recall(ctx, written, before)
	o.audit(ctx, &who, edits, before, written, nil)
	changes := make([]*adminv1.OverrideChange, len(edits))
	for i := range edits {
		changes[i] = &adminv1.OverrideChange{Before: overridepb.Message(before[i])}
		if !edits[i].Remove && i < len(written) {
			changes[i].After = overridepb.Message(&written[i])
		}
	}
	return changes, nil
}

// recall corrects the previous overrides in before. They are the ones that this replica knew; recall replaces them with
// those that the source had at the time of the change.
func (o *overrides) recall(ctx context.Context, written []override.Override, before []*override.Override) {
	const beside = 100 // changes by others at the same time
	events, err := o.Source.History(ctx, override.Query{Limit: min(len(written)+beside, 1000)})
	if err != nil {
		return
	}
	type change struct {
		version          int64
		domain, identity string
	}
	was := make(map[change]*override.Override, len(events))
	for i := range events {
		if about := cmp.Or(events[i].Before, events[i].After); about != nil {
			was[change{events[i].Version, about.Domain, about.String()}] = events[i].Before
		}
	}
	for i := range written {
		w := &written[i]
		if b, ok := was[change{w.Version, w.Domain, w.String()}]; ok {
			before[i] = b
		}
	}
}
