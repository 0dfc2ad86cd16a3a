package descriptor

import "time"

// FileStatus is what became of one rule file, or of one other source of rules.
type FileStatus struct {
	Name     string    // path below the rule folder, or the resource's name
	State    FileState // what of it is in use
	Domains  []string  // the domains it defines, of the version in use
	Rules    int       // how many rules it gives, of the version in use
	Errors   []string  // why its newest version was rejected, each with file:line:col or resource and path; empty if loaded
	Warnings []string  // what of the version in use was taken otherwise than it is written, each with file:line:col
	Since    time.Time // when State became what it is
}

// FileState is whether a rule file is in use.
type FileState string

// The states of a rule file.
const (
	FileLoaded   FileState = "loaded"   // its newest version is in use
	FileStale    FileState = "stale"    // its newest version is rejected; its last good version is in use
	FileRejected FileState = "rejected" // it is rejected and nothing of it is in use
)
