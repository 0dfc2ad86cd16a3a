package quota

import "time"

// Kind is the kind of an assignment.
type Kind uint8

// The kinds.
const (
	None     Kind = iota // no assignment: the client decides by its own configuration
	AllowAll             // every request passes
	DenyAll              // no request passes
	Tokens               // a token bucket
)

func (k Kind) String() string {
	return [...]string{None: "none", AllowAll: "allow all", DenyAll: "deny all", Tokens: "token bucket"}[k]
}

// Assignment tells a subscriber what to do with requests for the next TTL. Envoy supports whole seconds only.
type Assignment struct {
	Kind Kind
	TTL  time.Duration // a multiple of a second

	// Only for a token bucket.
	MaxTokens uint32        // burst; at least 1
	Fill      uint32        // tokens per Interval, at least 1
	Interval  time.Duration // a multiple of a second; never changes for a bucket, because Envoy ignores a change of it
}

// Rate returns the tokens per second of an assignment.
func (a *Assignment) Rate() float64 {
	if a.Kind != Tokens {
		return 0
	}
	return float64(a.Fill) / a.Interval.Seconds()
}
