package descriptor

import "strings"

// RegionMode is how a limit counts when the service runs in several regions.
type RegionMode uint8

// The modes.
const (
	Regional RegionMode = iota // each region counts on its own
	AtHome                     // one region counts, and the others ask it
	Eventual                   // each region counts on its own, minus the hits that the others have reported
)

// RegionModeNames are the names of the modes in answers for operators.
var RegionModeNames = []string{Regional: "regional", AtHome: "home", Eventual: "eventual"}

// HashHome is the home in a rule file if a hash of the counter's key chooses it.
const HashHome = "hash"

// Regions describes how a limit counts across regions.
type Regions struct {
	Mode RegionMode
	Home string // AtHome: the region that counts; empty if a hash of the counter's key chooses a configured region
}

// HasHome reports whether one region counts for all.
func (r *Regions) HasHome() bool { return r.Mode == AtHome }

// HomeName returns the home as a rule file writes it, or "" without a home.
func (r *Regions) HomeName() string {
	switch {
	case r == nil || r.Mode != AtHome:
		return ""
	case r.Home == "":
		return HashHome
	default:
		return r.Home
	}
}

// String returns the setting as a rule file writes it, or "" for nil.
func (r *Regions) String() string {
	switch {
	case r == nil:
		return ""
	case r.Mode == AtHome:
		return "{home: " + r.HomeName() + "}"
	case r.Mode == Eventual:
		return "{mode: eventual}"
	default:
		return "{mode: regional}"
	}
}

// Words describes the setting for people, in a sentence about a limit.
func (r *Regions) Words() string {
	switch {
	case r == nil:
		return ""
	case r.Mode == Eventual:
		return ", about one limit for all regions: each subtracts what the others say they have counted"
	case r.Home == "":
		return ", one limit for all regions: each counter has a home region, which counts"
	default:
		return ", one limit for all regions: region " + r.Home + " counts"
	}
}

// MaxRegionName is how long the name of a region may be.
const MaxRegionName = 32

// ValidRegion reports whether a text can be the name of a region: letters from a to z, digits, and hyphens within.
// Names are labels of metrics and parts of certificates.
func ValidRegion(name string) bool {
	return name != "" && len(name) <= MaxRegionName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		!strings.HasPrefix(name, "-") && !strings.HasSuffix(name, "-")
}
