package descriptor

import "fmt"

// Enforcement is whom a limit refuses.
type Enforcement uint8

// The enforcements. All limits are counted and measured.
const (
	EnforcedForAll   Enforcement = iota
	EnforcedForSome              // a share of the counters: Limit.EnforcePercent
	EnforcedInShadow             // for nobody, and callers do not see the limit
	EnforcedSoftly               // for nobody, and callers see that they are above the limit
)

// Varies reports whether the limit does more or less than refuse what is above it, for all callers.
func (l *Limit) Varies() bool { return l.Enforcement != EnforcedForAll || l.WarnAt > 0 }

// AppendCaller appends what chooses the callers for whom a limit of a rule is enforced: <domain>|<key>=<value>|<name>, where the
// entries are as in KeyBuilder's keys and have the values that count, and the name is the limit's. So another number, window, algorithm or prefix of keys chooses
// the same callers, and another limit chooses others.
func (r *Rule) AppendCaller(dst []byte, domain string, entries []Entry, limit int) []byte {
	dst = KeyBuilder{}.AppendKey(dst, domain, entries, r, &r.Limits[limit])
	dst = dst[:len(dst)-len(r.tags[limit])]
	return appendEscaped(dst, r.Limits[limit].Name)
}

// EnforcedFor reports whether the limit is enforced for a caller, whom AppendCaller describes. The answer is the same in every
// process and version, and a larger percentage only adds callers: it compares the upper 32 bits of a hash with the share. The hash is
// FNV-1a with 64 bits, h, mixed as (h ^ h>>32) * 0x9e3779b97f4a7c15.
func (l *Limit) EnforcedFor(caller []byte) bool {
	switch l.Enforcement {
	case EnforcedForAll:
		return true
	case EnforcedForSome:
		return hashBytes(hashStart, caller)>>32*100>>32 < uint64(l.EnforcePercent)
	default:
		return false
	}
}

// EnforcementWords describes the enforcement of a limit for people, after a comma. It is empty if there is nothing to say.
func (l *Limit) EnforcementWords() string {
	words := ""
	switch l.Enforcement {
	case EnforcedForSome:
		words = fmt.Sprintf(", enforced for %d %% of callers, else in shadow", l.EnforcePercent)
	case EnforcedInShadow:
		words = ", in shadow"
	case EnforcedSoftly:
		words = ", soft"
	}
	if l.WarnAt > 0 {
		words += fmt.Sprintf(", warns at %d %%", l.WarnAt)
	}
	return words
}
