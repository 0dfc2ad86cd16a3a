package descriptor

import "fmt"

// Enforcement selects the customers to whom a limit denies requests.
type Enforcement uint8

// The enforcements. All limits are counted and measured.
const (
	EnforcedForAll   Enforcement = iota
	EnforcedForSome              // enforced for Limit.EnforcePercent percent of the customers; in shadow for the others
	EnforcedInShadow             // denies nothing, and answers do not show the limit
	EnforcedSoftly               // denies nothing, and answers warn customers that are above the limit
)

// Varies reports whether the limit does anything other than deny all customers above it.
func (l *Limit) Varies() bool { return l.Enforcement != EnforcedForAll || l.WarnAt > 0 }

// AppendCaller appends the text by which EnforcedFor chooses customers: <domain>|<key>=<value>|<name>. The entries are
// as in KeyBuilder's keys and have the counted values; the name is the limit's. So a limit with another number, window,
// algorithm or prefix of keys is enforced for the same customers, and a limit with another name for others.
func (r *Rule) AppendCaller(dst []byte, domain string, entries []Entry, limit int) []byte {
	dst = KeyBuilder{}.AppendKey(dst, domain, entries, r, &r.Limits[limit])
	dst = dst[:len(dst)-len(r.tags[limit])]
	return appendEscaped(dst, r.Limits[limit].Name)
}

// EnforcedFor reports whether the limit is enforced for a customer, whom AppendCaller describes. The answer is the same
// in every replica and version, and a larger percentage only adds customers: it compares the upper 32 bits of a hash
// with the share. The hash is FNV-1a with 64 bits, h, mixed as (h ^ h>>32) * 0x9e3779b97f4a7c15.
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

// EnforcementWords describes the enforcement of a limit for people, after a comma. It is empty if there is nothing to
// say.
func (l *Limit) EnforcementWords() string {
	words := ""
	switch l.Enforcement {
	case EnforcedForSome:
		words = fmt.Sprintf(", enforced for %d%% of customers, else in shadow", l.EnforcePercent)
	case EnforcedInShadow:
		words = ", in shadow"
	case EnforcedSoftly:
		words = ", soft"
	}
	if l.WarnAt > 0 {
		words += fmt.Sprintf(", warns at %d%%", l.WarnAt)
	}
	return words
}
