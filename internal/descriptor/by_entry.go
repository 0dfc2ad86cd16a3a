package descriptor

// ByEntry holds the settings of a rule that depend on the entries of a request. It is never changed, because copies of
// a rule share it.
type ByEntry struct {
	HitCost *HitCost // nil if each hit counts for one
	Scales  *Scales  // nil if nothing multiplies the limits
	Classes *Sharing // nil if customers do not share limits by class
}

// HitCost returns the cost of a hit, or nil if it is always one.
func (r *Rule) HitCost() *HitCost {
	if r.ByEntry == nil {
		return nil
	}
	return r.ByEntry.HitCost
}

// Scales returns the scales of the limits, or nil without any.
func (r *Rule) Scales() *Scales {
	if r.ByEntry == nil {
		return nil
	}
	return r.ByEntry.Scales
}

// SetHitCost sets the cost of a hit. The rule must not be in use.
func (r *Rule) SetHitCost(c *HitCost) { r.changeByEntry(func(b *ByEntry) { b.HitCost = c }) }

// SetScales sets the scales of the limits. The rule must not be in use.
func (r *Rule) SetScales(s *Scales) { r.changeByEntry(func(b *ByEntry) { b.Scales = s }) }

// SetClasses sets the classes of customers that share the limits. The rule must not be in use.
func (r *Rule) SetClasses(s *Sharing) { r.changeByEntry(func(b *ByEntry) { b.Classes = s }) }

func (r *Rule) changeByEntry(change func(*ByEntry)) {
	var b ByEntry
	if r.ByEntry != nil {
		b = *r.ByEntry
	}
	change(&b)
	r.ByEntry = nil
	if b != (ByEntry{}) {
		r.ByEntry = &b
	}
}
