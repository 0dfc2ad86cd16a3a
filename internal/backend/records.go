package backend

import "time"

// Records keeps small values for package regions. memory and redis have records. They may be used by any number of goroutines.
//
// A value is changed in two steps: the caller computes the next value from the one that it saw last, and Change writes it if nothing
// has changed since, and if the time is still within the bounds that the computation assumed. A value that is kept begins with a stamp that
// the caller draws anew each time, so comparing stamps is comparing values. After the stamp it has a number: what has been taken from it
// since it was written (Account).
type Records interface {
	// Start settles takes with an Account, as Starter does.
	Starter

	// Change begins a change, and calls c.Done when it has an answer, from another goroutine or before Change returns. What Done does
	// must not take long. c may be used again then.
	Change(c *RecordChange)

	// Clock names the clock that decides about a key: each node of a cluster has its own.
	Clock(key []byte) string
}

// A record begins with its stamp, of StampSize bytes, and what was taken since. Both are numbers of 64 bits, below 2^53.
const (
	StampSize  = 8
	RecordHead = 2 * StampSize
)

// RecordChange is a change of one record, and its answer.
type RecordChange struct {
	Key  []byte // of the counter that the record belongs to; both are in one slot of a cluster
	Kind string // what the record is about the counter

	// Value is written, with 0 after its stamp, if the record begins with Stamp, and the time is from NotBefore to NotAfter, in microseconds. An empty Stamp is
	// for a record that does not exist. Without a Value nothing is written, and the answer is the same.
	Stamp, Value        []byte
	NotBefore, NotAfter int64
	Lives               time.Duration // how long the record is kept; 0: forever

	// Taken is what the caller knows to be taken from the record, and Value accounts for. At most Most more may have been taken by now; as it
	// is not in Value, it is written after the stamp. If more was taken, or less, nothing is written, and the answer is Differs.
	Taken, Most int64

	Read bool // the answer is Differs, with what is there; nothing is compared or written

	Done func()

	// The answer. After an error it is not known whether the value was written.
	Err     error
	Result  RecordResult
	At      int64  // the time of the change
	More    int64  // Written: what was taken besides Taken
	Present []byte // Differs: the value that is there; nil: none
	Counted bool   // Differs, and there is none: the counter itself may exist
}

// RecordResult is what became of a change.
type RecordResult uint8

// The results.
const (
	RecordWritten  RecordResult = iota
	RecordDiffers               // the record is another one than the caller believed
	RecordUntimely              // the time is not within the bounds
)

// StampOf is the stamp of a value that is there.
func StampOf(present []byte) []byte { return present[:min(StampSize, len(present))] }
