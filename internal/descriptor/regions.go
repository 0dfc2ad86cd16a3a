package descriptor

import (
	"strconv"
	"strings"
	"time"
)

// RegionMode is how a limit counts when the service runs in several regions.
type RegionMode uint8

// The modes.
const (
	Regional RegionMode = iota // each region counts on its own
	AtHome                     // one region counts, and the others ask it for each request
	InEscrow                   // one region counts, and the others hold permits that it has charged before
	Eventual                   // each region counts on its own, less what the others have told it about theirs
)

// RegionModeNames are the names of the modes in rule files.
var RegionModeNames = []string{Regional: "regional", AtHome: "home", InEscrow: "escrow", Eventual: "eventual"}

// Regions says how a limit counts across regions.
type Regions struct {
	Mode RegionMode
	Home string // the region that counts; empty: a hash of the counter's key chooses one of the configured regions

	// Rule is the same as long as the rule's domain and path are, whatever its numbers, and another one for each rule. 0: unknown. All
	// limits of a rule have one home.
	Rule uint64
}

// HasHome reports whether one region counts for all.
func (r *Regions) HasHome() bool { return r.Mode == AtHome || r.Mode == InEscrow }

// String returns the setting as a rule file writes it, or "" for nil.
func (r *Regions) String() string {
	if r == nil {
		return ""
	}
	text := "{mode: " + RegionModeNames[r.Mode]
	if r.Home != "" {
		text += ", home: " + strconv.Quote(r.Home)
	}
	return text + "}"
}

// Words describes the setting for people, in a sentence about a limit. bucket: it is one without windows.
func (r *Regions) Words(bucket bool) string {
	if r == nil {
		return ""
	}
	if r.Mode == Eventual {
		return ", about one limit for all regions: each subtracts what the others say they have counted"
	}
	home := "the home region"
	if r.Home != "" {
		home = "region " + r.Home
	}
	switch {
	case r.Mode == AtHome:
		return ", one limit for all regions: every request asks " + home
	case bucket:
		return ", one limit for all regions: " + home + " gives each region a part"
	}
	return ", one limit for all regions: " + home + " grants permits"
}

// MaxRegionName is how long the name of a region may be.
const MaxRegionName = 32

// ValidRegion reports whether a text can be the name of a region: letters from a to z, digits, and hyphens within. Names are labels
// of metrics and parts of certificates.
func ValidRegion(name string) bool {
	return name != "" && len(name) <= MaxRegionName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		!strings.HasPrefix(name, "-") && !strings.HasSuffix(name, "-")
}

// Bounds of a limit whose permits can be granted to other regions.
const (
	// LeastGrant is the shortest life of a grant that is worth having: it has to arrive and to be used.
	LeastGrant = 4 * time.Second

	// LeastForRegion is the least limit for each region that is worth dividing.
	LeastForRegion = 40

	// LogGrants is how many lifetimes of a grant the window of a sliding log spans. Hits stay in the log for one
	// lifetime longer.
	LogGrants = 25
)
