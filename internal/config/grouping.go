package config

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// groupPattern matches the texts that descriptor.ParseGroup accepts.
const groupPattern = `\$[1-9]|(` + v4Group + `(, ?` + v6Group + `)?|` + v6Group + `(, ?` + v4Group + `)?)`

const (
	v4Group = `ipv4/([1-9]|[12][0-9]|3[0-2])`
	v6Group = `ipv6/([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])`
)

const (
	capturedAndOverridable = "`overridable` and `group: $...`: operators name a customer by the values it sends, and " +
		"this is only a part of it; leave out one of them"
	capturedAndUsage = "`usage` and `group: $...`: usage is listed by the values that clients send, and this is only a " +
		"part of it; leave out one of them"
)

func (d *descriptorReading) readGroup(v yamlform.Value) {
	text, ok := v.Text()
	if !ok {
		return
	}
	g, err := descriptor.ParseGroup(text)
	if err != nil {
		v.Errorf("`group`: %v", err)
		return
	}
	d.spec.Group, d.group = g, v
}

// checkGrouping checks `fold_case` and `group`, and gives the values of `fold_case` lower case. It returns false for
// errors.
func (d *descriptorReading) checkGrouping() bool {
	kind := d.spec.Level().Kind
	wildcardKey := descriptor.HasWildcard(d.spec.Key)
	fold, group := d.spec.FoldCase, d.spec.Group
	if d.valueBad || !fold && group == (descriptor.Group{}) {
		return true
	}
	switch {
	case fold && wildcardKey:
		d.fold.Errorf("`fold_case` and a `key` with a * in it: write the key without a *")
	case fold && kind == descriptor.MatchCIDR:
		d.fold.Errorf("`fold_case` and `value_cidr` cannot be combined: addresses have no case, and all notations of one " +
			"are one value; leave out `fold_case`")
	case fold && (group.V4 > 0 || group.V6 > 0):
		d.fold.Errorf("`fold_case` and `group: %s`: addresses have no case; leave out `fold_case`", group)
	case fold && !d.foldValues():
	case group == descriptor.Group{}:
		return true
	case d.spec.ShareThreshold:
		d.group.Errorf("`group` and `share_threshold` cannot be combined: all values share one counter, so groups have no " +
			"effect; leave out one of them")
	case d.spec.Condition:
		d.group.Errorf("`group` and `condition` cannot be combined: the value is not part of the counter, so groups have " +
			"no effect; leave out one of them")
	case group.Capture > 0:
		return d.checkCapture()
	case wildcardKey:
		d.group.Errorf("`group` and a `key` with a * in it: write the key without a *")
	case kind == descriptor.MatchExact || kind == descriptor.MatchValues:
		d.group.Errorf("`group: %s` and exact values: each address is named, so there is nothing to group; write "+
			"`value_cidr`, or leave out the value", group)
	case kind == descriptor.MatchCIDR:
		network, err := descriptor.ParseCIDR(d.spec.Value)
		if err != nil || !group.Wider(network) {
			return true
		}
		d.group.Errorf("`group: %s` is wider than the network %s: all its addresses would share one counter; write "+
			"`share_threshold: true`, or a longer prefix", group, network)
	default:
		return true
	}
	return false
}

// checkCapture checks a group that is a capture group of the expression.
func (d *descriptorReading) checkCapture() bool {
	n := int(d.spec.Group.Capture)
	if d.spec.Kind != descriptor.MatchRegex {
		d.group.Errorf("`group: $%d` needs a `value_regex` with a capture group, such as `/tenants/([^/]+)/.*`", n)
		return false
	}
	size, err := descriptor.CheckCapture(d.spec.Value, n, d.spec.FoldCase)
	switch {
	case !d.r.spend(d.group, "`group`", size/entriesForInstruction): // the error is noted
	case err != nil:
		d.group.Errorf("`group: $%d` of %s: %v", n, yamlform.Quote(d.spec.Value), err)
	case d.says.Overridable():
		d.overridableAt.Errorf("%s", capturedAndOverridable)
	case d.says.Usage:
		d.usageAt.Errorf("%s", capturedAndUsage)
	default:
		d.r.rejectPerCustomer(d.spec.Children, capturedAndOverridable, capturedAndUsage)
		return true
	}
	return false
}

// foldValues gives the values lower case. It returns false if two of them are then the same.
func (d *descriptorReading) foldValues() bool {
	if d.spec.Kind == 0 {
		d.spec.Value = descriptor.Fold(d.spec.Value)
	}
	seen := make(map[string]bool, len(d.spec.Values))
	for i, v := range d.spec.Values {
		d.spec.Values[i] = descriptor.Fold(v)
		if seen[d.spec.Values[i]] {
			d.fold.Errorf("`fold_case`: %s is in `values` twice, in different cases of letters: write it once",
				yamlform.Quote(d.spec.Values[i]))
			return false
		}
		seen[d.spec.Values[i]] = true
	}
	return true
}
