package override

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Source keeps the records of overrides. Its methods may be called at any time, by any number of goroutines.
type Source interface {
	// Run calls apply with the set of all overrides, and again after each change by any replica, until ctx ends. One call
	// of apply ends before the next starts.
	Run(ctx context.Context, apply func(*Set)) error

	// Write writes and removes overrides, all of them or none. It returns when the changes will survive a crash of this
	// replica. The records that it returns have their new Version; it is 0 if there was nothing to remove. One call writes
	// at most MaxEdits. The error is a *ReadOnlyError, ErrFull, a *ConflictError, an *EditError, or the reason why the
	// source is unreachable.
	Write(ctx context.Context, author string, edits []Edit) ([]Override, error)

	// Get returns the records of some overrides, in the same order, nil for one that does not exist. One call reads at
	// most MaxEdits.
	Get(ctx context.Context, which []Identity) ([]*Override, error)

	// List returns records in a fixed order, and the start of the next page, empty after the last one.
	List(ctx context.Context, q Query) (page []Override, next string, err error)

	// History returns the last changes, the newest first.
	History(ctx context.Context, q Query) ([]Event, error)
}

// Bounds of a source.
const (
	MaxOverrides = 1_000_000
	MaxEdits     = 1000 // edits of one Write
)

// Edit writes or removes one override.
type Edit struct {
	Override        // its Author, Version and Changed are set by the source
	Remove   bool   // only the Identity and the Reason matter
	Expect   *int64 // the Version that the record must have now, 0 if it must not exist; nil allows any
}

// Check returns a *ConflictError if the edit expects another version than the record has. The record is nil if it does
// not exist.
func (e *Edit) Check(record *Override) error {
	found := int64(0)
	if record != nil {
		found = record.Version
	}
	if e.Expect != nil && *e.Expect != found {
		return &ConflictError{Identity: e.Identity, Expected: *e.Expect, Found: found}
	}
	return nil
}

// Query selects records.
type Query struct {
	Domain string
	Rule   string            // a path; empty means all rules
	Where  map[string]string // entries that the descriptor must have
	After  string            // start of the page, from the previous page; empty for the first
	Limit  int               // the most records of a page; 0 means 100, the maximum is 1000
}

// Event is one change, for audits.
type Event struct {
	Version int64
	At      time.Time
	Author  string
	Reason  string
	Before  *Override // nil if it is new
	After   *Override // nil if it was removed
}

// ErrFull is the error of a write that does not fit.
var ErrFull = errors.New("no room for these overrides")

// ErrReadOnly is the error of a write to a source that this replica only reads.
var ErrReadOnly = errors.New("the overrides are read from a file, which this replica does not change")

// EditError reports an edit that is invalid independently of the source's content.
type EditError struct {
	Index int // index of the edit
	Err   error
}

// Error implements error.
func (e *EditError) Error() string { return fmt.Sprintf("edits[%d]: %v", e.Index, e.Err) }

// Unwrap returns the reason.
func (e *EditError) Unwrap() error { return e.Err }

// CheckEdits returns an error if a source cannot write these edits together.
func CheckEdits(author string, edits []Edit) error {
	if len(edits) > MaxEdits {
		return fmt.Errorf("more than %d overrides at once: write them in several steps", MaxEdits)
	}
	seen := make(map[string]int, len(edits))
	for i := range edits {
		e := edits[i].Override
		e.Author = author
		if edits[i].Remove {
			e.Numbers = Numbers{Kind: Blocked} // they do not matter
		}
		if err := e.Validate(); err != nil {
			return &EditError{i, err}
		}
		key := e.Domain + "\x00" + e.String()
		if first, twice := seen[key]; twice {
			return &EditError{i, fmt.Errorf("edits[%d] is for the same override: keep one of them", first)}
		}
		seen[key] = i
	}
	return nil
}

// ConflictError reports that a record has changed since the version that the edit expects.
type ConflictError struct {
	Identity Identity
	Expected int64
	Found    int64 // the record's version; 0 if it does not exist
}

// Error implements error.
func (e *ConflictError) Error() string {
	if e.Found == 0 {
		return "the override does not exist any more: read it again, then change it"
	}
	return "the override was changed since it was read: read it again, then change it"
}
