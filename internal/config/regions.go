package config

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// regionsForm is the map of `regions`, of a limit and of a domain.
var regionsForm = yamlform.NewForm("regions", "`regions`", []yamlform.Field[regionsReading]{
	{Key: yamlform.Key{Name: "mode", Type: yamlform.OneOf(descriptor.RegionModeNames...), Required: true, Extension: true,
		Doc: "`regional`: each region counts on its own; `home`: every request asks the home; `escrow`: the home grants permits in advance; `eventual`: each region subtracts what the others report"},
		Read: func(r *regionsReading, v yamlform.Value) {
			i, _ := v.Choice()
			r.regions.Mode, r.mode = descriptor.RegionMode(max(i, 0)), v
		}},
	{Key: yamlform.Key{Name: "home", Type: yamlform.Type{Kind: yamlform.Text, Pattern: regionPattern, Form: "the name of a region in lower case, such as eu or us-west-2"}, Extension: true,
		Doc: "the region that counts, as named in `RATELIMITD_REGIONS`; absent: chosen for each counter by a hash of its key"},
		Read: func(r *regionsReading, v yamlform.Value) { r.regions.Home, _ = v.Text(); r.home = v }},
}...)

// regionPattern is what descriptor.ValidRegion accepts.
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
	case !r.mode.Given():
		v.Errorf("`regions` without a `mode`: write %s", yamlform.List(descriptor.RegionModeNames, "or"))
		return nil
	case r.home.Given() && r.regions.Home == "":
		r.home.Errorf("`home` is empty: write the name of a region, or leave it out")
		return nil
	case r.home.Given() && !descriptor.ValidRegion(r.regions.Home):
		r.home.Errorf("`home` must be the name of a region in lower case, such as eu or us-west-2, this is %s", yamlform.Quote(r.regions.Home))
		return nil
	case r.home.Given() && !r.regions.HasHome():
		r.home.Errorf("`home` and `mode: %s`: each region counts on its own, so there is no home; leave it out", descriptor.RegionModeNames[r.regions.Mode])
		return nil
	}
	return &r.regions
}

// applyRegions gives the domain's `regions` to the limits that say nothing, and rejects what cannot hold across regions. An earlier
// step has copied what is inherited.
func (r *ruleReader) applyRegions(d *descriptor.DomainSpec) {
	r.applyRegionsBelow(d, identity(0, d.Name), d.Children)
}

// applyRegionsBelow is applyRegions below a level with an identity.
func (r *ruleReader) applyRegionsBelow(d *descriptor.DomainSpec, above uint64, specs []descriptor.NodeSpec) {
	for i := range specs {
		level := specs[i].Level()
		id := identity(above, level.Key, strconv.Itoa(int(level.Kind)), level.Value)
		if rule := specs[i].Rule; rule != nil {
			r.applyRegionsTo(rule, d)
			for k := range rule.Limits {
				if l := &rule.Limits[k]; l.Regions != nil {
					own := *l.Regions
					own.Rule = id
					l.Regions = &own
				}
			}
		}
		r.applyRegionsBelow(d, id, specs[i].Children)
	}
}

// identity returns descriptor.Regions.Rule for what is at a path: it combines the identity of the path above with what this
// level adds. Regions of different versions compare it.
func identity(above uint64, level ...string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, above)) // it never fails
	for _, text := range level {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
		_, _ = h.Write([]byte(text))
	}
	return h.Sum64()
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
		if why := notAcrossRegions(d, rule, l); why != "" {
			what := fmt.Sprintf("`mode: %s` of `regions`", descriptor.RegionModeNames[l.Regions.Mode])
			advice := ""
			if fromDomain {
				what += ", which the domain says,"
				advice = "; or write `regions: {mode: regional}` in the limit"
			}
			r.ErrorAt(yamlform.Position(rule.Position), "%s and %s%s", what, why, advice)
			continue
		}
		d.AcrossRegions = true
		if l.Has(descriptor.SettingCountDenied) {
			l.CountDenied = descriptor.DeniedDrop // a region that holds nothing must not use up what others have
		}
	}
	if i := slices.IndexFunc(rule.Limits, func(l descriptor.Limit) bool { return l.Regions.String() != rule.Limits[0].Regions.String() }); i > 0 {
		r.ErrorAt(yamlform.Position(rule.Position), "the limits %s and %s have different `regions`: give all limits of a rule the same, or write a descriptor for each",
			yamlform.Quote(rule.Limits[0].Name), yamlform.Quote(rule.Limits[i].Name))
	}
}

// notAcrossRegions returns why a limit cannot hold across regions, and what to do, or nothing if it can.
func notAcrossRegions(d *descriptor.DomainSpec, rule *descriptor.Rule, l *descriptor.Limit) string {
	switch {
	case d.Admission == descriptor.AllOrNothing:
		return "`admission: all_or_nothing`: what a denied request took in one region would have to be given back from another; leave out one of them"
	case d.QuotaBuckets != nil:
		return "`quota_buckets`: shares of a limit are divided in one region only; leave out one of them"
	case rule.Quota:
		return "`quota_mode: true`: a region cannot know what the others deny; leave out one of them"
	case l.Algorithm == descriptor.Concurrency:
		return "`algorithm: concurrency`: places are counted in one region only"
	case l.Algorithm == descriptor.LeakyBucket && l.NoDelay != descriptor.NoDelayAll:
		return "a `leaky_bucket` in which requests wait: their turn is known in one region only; use `token_bucket` or `nodelay: all`"
	case l.Reservations != nil:
		return "`reservations`: they are kept in one region only; leave out one of them"
	case l.Algorithm == descriptor.SharedWindow:
		return "`classes`: what a class is owed is known in one region only; leave out one of them"
	case l.Penalty != nil:
		return "`penalty`: a region cannot know whom the others punish; leave out one of them"
	case l.Lease && l.Regions.Mode == descriptor.Eventual:
		return "`lease: true`: what a replica holds in advance would count as used in all regions; leave out `lease`"
	case l.Lease:
		return "`lease: true`: the permits of a region do for its replicas what a lease does; leave out `lease`"
	case l.Scheduled:
		return "`active`: the regions would begin and end at different moments; leave out one of them"
	case l.CountDenied == descriptor.DeniedCount:
		return "`count_denied: true`: denied hits count nowhere then; leave out `count_denied`"
	case l.Regions.Mode == descriptor.InEscrow:
		return notInEscrow(rule, l)
	case l.Regions.Mode == descriptor.Eventual && (l.Algorithm != descriptor.FixedWindow && l.Algorithm != descriptor.SlidingWindow || l.FirstHit):
		return "anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added up; use `mode: home`"
	default:
		return ""
	}
}

// notInEscrow returns why permits of a limit cannot be granted to other regions, even if there are only two.
func notInEscrow(rule *descriptor.Rule, l *descriptor.Limit) string {
	least := descriptor.LeastGrant
	if l.Algorithm == descriptor.SlidingLog {
		least *= descriptor.LogGrants
	}
	part := l.Window.Length()
	if l.Algorithm == descriptor.SlidingWindow {
		part = time.Duration(l.Arithmetic.Length) * time.Microsecond
	}
	bucket := l.Algorithm == descriptor.LeakyBucket || l.Algorithm == descriptor.TokenBucket && !l.Interval
	switch {
	case rule.Scales() != nil:
		return "`scale`: permits are granted under one number of requests; use `mode: home`"
	case bucket && min(l.Requests, l.Capacity()) < 2*descriptor.LeastForRegion:
		return fmt.Sprintf("a bucket of %d with %d requests per window: it is too small to be divided, two regions need %d of both; use `mode: home`",
			l.Capacity(), l.Requests, 2*descriptor.LeastForRegion)
	case bucket:
		return ""
	case part < least:
		return fmt.Sprintf("a window, or a part of one, of %s: a permit would end before it can be used, %s is the least; use `mode: home`", part, least)
	case l.Capacity() < 2*descriptor.LeastForRegion:
		return fmt.Sprintf("a limit of %d: it is too small to be divided, two regions need %d; use `mode: home`", l.Capacity(), 2*descriptor.LeastForRegion)
	default:
		return ""
	}
}
