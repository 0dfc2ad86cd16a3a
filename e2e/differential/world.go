package differential

import "time"

// World is what both versions are given.
type World struct {
	Seed     uint64
	Options  Options
	Versions []Version    // of the rules; the first one is in force at the beginning
	Sets     [][]Override // of overrides; the first one is empty
	Start    time.Time
	Steps    []Step
}

// Version is a set of rule files with the settings that go with it.
type Version struct {
	Files    []string
	Settings Settings
}

// Options are what a process fixes when it starts.
type Options struct {
	NoMetrics bool // decisions are not counted, so that some of them are plain
	MaxSeries int

	HotKeys, Usage, Events bool
	Local                  bool // there is a store for on_error: local

	KeyPrefix      string
	LyftKeys       bool
	CalendarMonths bool
}

// Settings are the settings of a limiter. Their numbers are the constants of package descriptor.
type Settings struct {
	Shadow, Quota, StopWhenOver bool
	Admission, OnError          uint8
	Replicas                    int
	Headers                     uint8
	OwnNames                    bool // headers of the reference's family have names of their own
	CalendarMonths, HideShadow  bool
	Metadata, Explain           bool
	NearLimitRatio              float32
}

// StepKind is what happens in a step.
type StepKind uint8

// The kinds.
const (
	Decide       StepKind = iota
	Begin                 // Start, and the store answers at once
	BeginLater            // Start, and the store answers in a later step with Resolve, or at the end
	Allow                 // AllowPlain
	Peek                  // and Explain, of the first descriptor
	PeekWith              // Peek with the overrides of Set
	Reset                 // of the first descriptor
	QuotaBucket           // of the first descriptor
	Swap                  // to Version
	SetOverrides          // to Set
	SetReplicas
	Sweep // the stores forget what has expired
	stepKinds
)

// Step is one thing that happens.
type Step struct {
	Kind    StepKind
	Now     time.Time
	Resolve bool // the store answers all that waits, before the step

	Request Request
	Store   Failure // of the store, while the step asks it
	Local   Failure // of the store for on_error: local
	Cached  uint64  // refused takes that an over-limit cache has answered, as bits by their index
	Ended   bool    // the caller's context has ended before

	Version  int
	Set      int
	Replicas int
}

// Failure is how a store fails.
type Failure struct {
	Kind FailureKind
	Some uint64 // FailSome: the takes that have no answer, as bits by their index
}

// FailureKind is a kind of Failure.
type FailureKind uint8

// The kinds.
const (
	Works FailureKind = iota
	FailAll
	FailSome
	FailFull
	FailCounted // the store has counted, and the answer is lost
	FailEnded   // the caller's context ends while the store works
	FailPanic   // only of Begin and BeginLater
)

// Entry is one key/value pair.
type Entry struct{ Key, Value string }

// Amount is a number of units of one kind.
type Amount struct {
	Name  string
	Units uint64
}

// Request is what is decided.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	Hits        uint32
	Purpose     Purpose
	Hold        *Hold
}

// Purpose is what a request wants besides a decision.
type Purpose uint8

// The purposes.
const (
	Count  Purpose = iota // its hits are counted
	Look                  // it only learns what would be decided
	Passed                // its hits have passed already
)

// Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries []Entry
	Hits    uint64
	HasHits bool
	Amounts []Amount
	Refund  bool
	Limit   *RequestLimit
}

// RequestLimit is a limit that a request brings along.
type RequestLimit struct {
	Requests   uint32
	Unit       int32
	Multiplier uint32
}

// Hold makes a request a step of a reservation.
type Hold struct {
	Op            HoldOp
	ID            [16]byte
	TTL           time.Duration
	Least         uint64
	Final         bool
	Unready       bool // no reservation can be made now
	ChargeUnknown bool
}

// HoldOp is what a step of a reservation does.
type HoldOp uint8

// The steps.
const (
	Reserve HoldOp = iota
	Commit
	Extend
)

// Override is an operator's override.
type Override struct {
	Domain, Rule, Limit  string
	Entries              []Entry
	Kind                 OverrideKind
	Requests, Burst      uint64
	NotBefore, ExpiresAt int64
}

// OverrideKind is what an override does to a limit.
type OverrideKind uint8

// The kinds.
const (
	Replace OverrideKind = iota
	Scale
	Unlimited
	Blocked
)
