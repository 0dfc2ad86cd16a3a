package client

import (
	"time"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/limits"
)

// DefaultTimeout is the default of Options.Timeout.
const DefaultTimeout = 20 * time.Millisecond

// DefaultMaxDenials is the default of Options.MaxDenials.
const DefaultMaxDenials = 10_000

// OnFailure says what Decide answers if the service does not.
type OnFailure uint8

// The answers.
const (
	FailOpen    OnFailure = iota // the request passes
	FailClosed                   // it is refused
	ReturnError                  // Decide returns the error
)

// Options are the settings of a Client. The zero value serves.
type Options struct {
	// Timeout is how long a decision may take. An earlier deadline of the caller's context counts instead. Default 20 ms.
	Timeout time.Duration

	// OnFailure says what the answer is if the service does not answer in time, or has none because its store is away. The decision
	// has the source limits.FailOpen or limits.FailClosed, and the cause in Err.
	OnFailure OnFailure

	// MaxDenials is how many denials are remembered. Beyond that number, one that has ended or else any other one is forgotten.
	// Default 10,000; negative: none is remembered.
	MaxDenials int

	// Observer is called after every decision; nil: nobody is.
	Observer limits.Observer

	// DialOptions are for the connection. Without credentials among them, the connection is not encrypted.
	DialOptions []grpc.DialOption
}
