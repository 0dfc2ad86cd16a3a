package descriptor

import "time"

// FileStatus is the state of one rule file, or of another source of rules.
type FileStatus struct {
	Name    string    // path below the rule directory, or the resource's name
	State   FileState // whether it is in use
	Domains []string  // the domains that the version in use defines
	Rules   int       // how many rules the version in use has
	// why its newest version was rejected, each with file:line:col or resource and path; empty if loaded
	Errors   []string
	Warnings []string  // parts of the version in use that do not have the effect that was written, each with file:line:col
	Since    time.Time // when State last changed
}

// FileState is the relation between the newest version of a rule file and the version in use.
type FileState string

// The states of a rule file.
const (
	FileLoaded   FileState = "loaded"   // its newest version is in use
	FileStale    FileState = "stale"    // its newest version was rejected; its last good version is in use
	FileRejected FileState = "rejected" // it was rejected, and no version of it is in use
)
