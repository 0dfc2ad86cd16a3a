package config

import (
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// regionModes are the values of `mode`. A limit with a home needs none.
var regionModes = []string{"regional", "eventual"}

// regionsForm is the map of `regions`, of a limit and of a domain.
var regionsForm = yamlform.NewForm("regions", "`regions`", []yamlform.Field[regionsReading]{
	{Key: yamlform.Key{Name: "home", Type: yamlform.Type{Kind: yamlform.Text, Pattern: regionPattern,
		Form: "the name of a region in lower case, such as eu or us-west-2, or `hash`"}, Extension: true,
		Doc: "the region that counts for all. `hash`: a hash of the counter's key chooses it"},
		Read: func(r *regionsReading, v yamlform.Value) { r.regions.Home, _ = v.Text(); r.home = v }},
	{Key: yamlform.Key{Name: "mode", Type: yamlform.OneOf(regionModes...), Extension: true,
		Doc: "`regional`: each region counts on its own. `eventual`: it also counts the hits that others report"},
		Read: func(r *regionsReading, v yamlform.Value) {
			if i, ok := v.Choice(); ok && regionModes[i] == "eventual" {
				r.regions.Mode = descriptor.Eventual
			}
			r.mode = v
		}},
}...)

// regionPattern matches the names that descriptor.ValidRegion accepts.
const regionPattern = "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"

type regionsReading struct {
	regions    descriptor.Regions
	mode, home yamlform.Value
}

// readRegions reads `regions`. It returns nil if there are errors.
func readRegions(v yamlform.Value) *descriptor.Regions {
	var r regionsReading
	read, unknown := yamlform.Read(v, regionsForm, &r)
	switch {
	case !read || unknown:
		return nil
	case r.home.Given() && r.mode.Given():
		r.home.Errorf("`home` and `mode` cannot be combined: with a home, one region counts for all, and there is no " +
			"mode; leave one of them out")
		return nil
	case !r.home.Given() && !r.mode.Given():
		v.Errorf("`regions` without a `home`: write `regions: {home: eu}` with the name of the region that counts, or " +
			"`regions: {mode: eventual}`")
		return nil
	case !r.home.Given():
		return &r.regions
	case !descriptor.ValidRegion(r.regions.Home):
		r.home.Errorf("`home` must be the name of a region in lower case, such as eu or us-west-2, or hash, not %s",
			yamlform.Quote(r.regions.Home))
		return nil
	}
	if r.regions.Mode = descriptor.AtHome; r.regions.Home == descriptor.HashHome {
		r.regions.Home = ""
	}
	return &r.regions
}

// applyRegions gives the domain's `regions` to the limits that do not set it, and rejects settings that cannot work
// across regions. An earlier step has copied inherited limits.
func (r *ruleReader) applyRegions(d *descriptor.DomainSpec) { r.applyRegionsBelow(d, d.Children) }

func (r *ruleReader) applyRegionsBelow(d *descriptor.DomainSpec, specs []descriptor.NodeSpec) {
	for i := range specs {
		if rule := specs[i].Rule; rule != nil {
			r.applyRegionsTo(rule, d)
		}
		r.applyRegionsBelow(d, specs[i].Children)
	}
}

func (r *ruleReader) applyRegionsTo(rule *descriptor.Rule, d *descriptor.DomainSpec) {
	for i := range rule.Limits {
		l := &rule.Limits[i]
		fromDomain := l.Regions == nil
		if fromDomain {
			l.Regions = d.Regions
		}
		if l.Regions == nil || l.Regions.Mode == descriptor.Regional {
			l.Regions = nil
			continue
		}
		if why := notAcrossRegions(d, l); why != "" {
			what := fmt.Sprintf("`regions: %s`", l.Regions)
			advice := ""
			if fromDomain {
				what += ", which the domain says,"
				advice = "; or write `regions: {mode: regional}` in the limit"
			}
			r.ErrorAt(yamlform.Position(rule.Position), "%s and %s%s", what, why, advice)
			continue
		}
		d.AcrossRegions = true
		if l.Regions.Mode == descriptor.Eventual && l.Has(descriptor.SettingCountDenied) {
			l.CountDenied = descriptor.DeniedDrop // hits denied by one region must not use up the hits of others
		}
		if l.Penalty != nil {
			penalty := *l.Penalty
			penalty.Regions, l.Penalty = l.Regions, &penalty
		}
	}
	if i := slices.IndexFunc(rule.Limits,
		func(l descriptor.Limit) bool { return l.Regions.String() != rule.Limits[0].Regions.String() }); i > 0 {
		r.ErrorAt(yamlform.Position(rule.Position),
			"the limits %s and %s have different `regions`: give all limits of a rule the same, or write a descriptor for each",
			yamlform.Quote(rule.Limits[0].Name), yamlform.Quote(rule.Limits[i].Name))
	}
}

// notAcrossRegions returns why a limit cannot hold across regions, and what to do, or nothing if it can.
func notAcrossRegions(d *descriptor.DomainSpec, l *descriptor.Limit) string {
	switch {
	case d.QuotaBuckets != nil:
		return "`quota_buckets` cannot be combined: shares are divided in one region only; leave out one of them"
	case l.Algorithm == descriptor.Concurrency:
		return "`algorithm: concurrency` cannot be combined: requests in flight are counted in one region only"
	case l.Algorithm == descriptor.LeakyBucket && l.NoDelay != descriptor.NoDelayAll:
		return "a `leaky_bucket` in which requests wait cannot be combined: the trip to another region takes longer than " +
			"the wait; use `token_bucket` or `nodelay: all`"
	case l.Reservations != nil:
		return "`reservations` cannot be combined: they are kept in one region only; leave out one of them"
	case l.Lease && !windowed(l):
		return "`lease: true` without a window on which all regions agree: use `home` with `fixed_window` or " +
			"`sliding_window`, or leave out `lease`"
	case l.Regions.Mode == descriptor.Eventual:
		return notEventual(l)
	default:
		return ""
	}
}

// windowed reports whether permits of a limit can be taken from its home: they live until a window ends.
func windowed(l *descriptor.Limit) bool {
	return l.Regions.Mode == descriptor.AtHome && (l.Algorithm == descriptor.FixedWindow ||
		l.Algorithm == descriptor.SlidingWindow)
}

// notEventual returns why the counts of several regions cannot be added up.
func notEventual(l *descriptor.Limit) string {
	switch {
	case l.Algorithm == descriptor.SharedWindow:
		return "`classes`: what a class is owed is known in one region only; use `home`"
	case l.Penalty != nil:
		return "`penalty`: a region cannot know whom the others punish; use `home`"
	case l.Scheduled:
		return "`active`: the regions would start and end at different moments; use `home`"
	case l.CountDenied == descriptor.DeniedCount:
		return "`count_denied: true`: each region would count what it denies because of the others; use `home`"
	case l.Algorithm != descriptor.FixedWindow && l.Algorithm != descriptor.SlidingWindow || l.FirstHit:
		return "anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added " +
			"up; use `home`"
	default:
		return ""
	}
}
