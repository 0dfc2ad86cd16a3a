package descriptor

// ByEntry is what depends on the entries of a request under a rule. It is never changed, because copies of a rule share
// it.
type ByEntry struct {
	HitCost *HitCost // nil: each hit counts for one
	Scales  *Scales  // nil: nothing multiplies the limits
	Classes *Sharing // nil: no limit is shared by classes of callers
}

// HitCost returns what a hit counts for, or nil if it always counts for one.
func (r *Rule) HitCost() *HitCost {
	if r.ByEntry == nil {
		return nil
	}
	return r.ByEntry.HitCost
}

// Scales returns what multiplies the limits, or nil if nothing does.
func (r *Rule) Scales() *Scales {
	if r.ByEntry == nil {
		return nil
	}
	return r.ByEntry.Scales
}

// SetHitCost sets what a hit counts for. The rule must not be in use.
func (r *Rule) SetHitCost(c *HitCost) { r.changeByEntry(func(b *ByEntry) { b.HitCost = c }) }

// SetScales sets what multiplies the limits. The rule must not be in use.
func (r *Rule) SetScales(s *Scales) { r.changeByEntry(func(b *ByEntry) { b.Scales = s }) }

// SetClasses sets which classes of callers share the limits. The rule must not be in use.
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
