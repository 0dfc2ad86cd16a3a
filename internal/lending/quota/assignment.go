package quota

import "time"

// Kind is what an assignment lets pass.
type Kind uint8

// The kinds.
const (
	None     Kind = iota // nothing is assigned: the client decides by its own configuration
	AllowAll             // every request passes
	DenyAll              // no request passes
	Tokens               // a token bucket
)

func (k Kind) String() string {
	return [...]string{None: "none", AllowAll: "allow all", DenyAll: "deny all", Tokens: "token bucket"}[k]
}

// Assignment is what one subscriber may let pass until TTL has passed. Envoy knows whole seconds only.
type Assignment struct {
	Kind Kind
	TTL  time.Duration // a multiple of a second

	// Of a token bucket.
	MaxTokens uint32        // at least 1
	Fill      uint32        // tokens per Interval, at least 1
	Interval  time.Duration // a multiple of a second; always the same for a bucket, because Envoy ignores a change of it
}

// Rate returns the tokens per second of an assignment.
func (a *Assignment) Rate() float64 {
	if a.Kind != Tokens {
		return 0
	}
	return float64(a.Fill) / a.Interval.Seconds()
}
