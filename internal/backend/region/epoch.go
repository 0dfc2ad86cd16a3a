package region

import "slices"

// Epoch is one version of the operator's list of regions, for the counters of one home. Epochs that follow each other differ in the
// list or in the home. A later one has a higher number.
type Epoch struct {
	Number  uint64
	Home    string
	Regions []string

	// Before is the list of the epoch before if the home moved with this one. Nil: it did not move.
	Before []string

	// Stopped says that the old home has stopped for certain: the operator answers for it. Then the new home does not wait
	// for the consent of a majority, which two regions do not have.
	Stopped bool
}

const (
	// lease is how long the consent of a region lasts, from when the home asked for it.
	lease = 30 * second

	pastLease = lease + lease/drift + 1 // as long, on a clock that may run faster
)

// Role is which epoch a region obeys, and whether it may act as a home. It is kept in that region's Redis, because replicas learn
// of a new epoch one after another. Replicas of a home ask every other region every few seconds to consent, and keep the Duty that
// follows.
//
// The role is a lease of the other regions. If the home is cut off, the operator may make another region the home, and the old one
// would not know. So a home stops on its own when more than half of the regions have not consented lately. A new home waits until
// more than half of the regions before and after have consented: these never consent to the old one again. Then it waits for the end of
// what they have consented to before, and for the end of what was granted under it.
type Role struct {
	Known uint64 // the latest epoch that this region has heard of

	// As a home.
	Epoch      uint64
	Generation uint64 // of the clock
	From       int64  // when this region became the home, or may act as one at the earliest; never: it waits for consent
	Consents   []Consent
}

// Consent is that of one region to a home.
type Consent struct {
	Region string
	Asked  int64 // by the home's clock: when the latest question was sent to which the region consented
}

const never = 1<<63 - 1

// Consent reports whether the region consents to the home of an epoch. Once it has, it consents to no home of an earlier epoch, and
// is none itself.
func (r *Role) Consent(epoch uint64) bool {
	if epoch < r.Known {
		return false
	}
	r.Known = epoch
	return true
}

// Begin makes the region the home of an epoch, or goes on with the role. It returns false if the region knows of a later epoch, or
// if the clock was set back.
func (r *Role) Begin(at Reading, e *Epoch) bool {
	if !r.enter(at) || !r.Consent(e.Number) {
		return false
	}
	if e.Number == r.Epoch {
		return true
	}
	r.Epoch, r.Consents = e.Number, nil
	switch {
	case e.Before == nil:
	case e.Stopped:
		r.From = at.Now + pastLife
	default:
		r.From = never
	}
	return true
}

// enter forgets consents that were asked for before the clock was set back: they would last too long.
func (r *Role) enter(at Reading) bool {
	if at.Generation < r.Generation || at.Now < at.Least {
		return false
	}
	if at.Generation > r.Generation {
		r.Generation, r.Consents = at.Generation, nil
	}
	return true
}

// Consented takes in that a region has consented, in answer to a question that was sent at asked by the home's clock.
func (r *Role) Consented(at Reading, e *Epoch, region string, asked int64) {
	if e.Number != r.Epoch || !r.enter(at) || asked > at.Now {
		return
	}
	i := slices.IndexFunc(r.Consents, func(c Consent) bool { return c.Region == region })
	if i < 0 {
		i = len(r.Consents)
		r.Consents = append(r.Consents, Consent{Region: region})
	}
	r.Consents[i].Asked = max(r.Consents[i].Asked, asked)
	if r.From == never && r.majority(e.Regions, e.Home) && r.majority(e.Before, e.Home) {
		// The old home may act until the last consent ends that one of these regions gave before, and what it granted at that
		// moment lives on.
		r.From = at.Now + pastLease + pastLife
	}
}

// majority reports whether more than half of the regions have consented at some time. The home consents to itself.
func (r *Role) majority(regions []string, home string) bool {
	n := 0
	for _, name := range regions {
		if name == home || slices.ContainsFunc(r.Consents, func(c Consent) bool { return c.Region == name }) {
			n++
		}
	}
	return 2*n > len(regions)
}

// Duty is what a replica of the home knows about its role. It goes into every script that acts on a counter as its home.
type Duty struct {
	Epoch   uint64
	Regions int   // number of regions
	From    int64 // as in Role: counters that are new to this home are full at that time
	Until   int64 // until when it may act

	// Grants: permits of the counter are granted to other regions. Else each of their requests asks the home.
	Grants bool
}

// Duty returns what the role allows: at most for the length of a lease, because a replica may keep it while the role ends.
func (r *Role) Duty(at Reading, e *Epoch) Duty {
	d := Duty{Epoch: e.Number, Regions: len(e.Regions), From: r.From}
	if !r.enter(at) || e.Number != r.Epoch || e.Number < r.Known || r.From == never {
		return d
	}
	// It is the home while at least half of the regions have consented, itself included.
	asked := []int64{at.Now}
	for _, c := range r.Consents {
		if c.Region != e.Home && slices.Contains(e.Regions, c.Region) && c.Asked <= at.Now {
			asked = append(asked, c.Asked)
		}
	}
	slices.Sort(asked)
	if needed := (len(e.Regions) + 1) / 2; len(asked) >= needed {
		d.Until = asked[len(asked)-needed] + shortened(lease) - unnoticed
	}
	return d
}

// acts reports whether the home may act. It may not if the clock was set back, because then Until would be too late.
func (d *Duty) acts(at Reading) bool {
	return at.Now >= at.Least && d.From <= at.Now && at.Now < d.Until
}
