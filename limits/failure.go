package limits

// OnFailure is what happens to a request when its limits cannot be checked: the store of the counters, or the service,
// does not answer.
type OnFailure uint8

// The answers to a failure. A rule file names them in on_error.
const (
	OnFailureDefault OnFailure = iota // the default of the option
	OnFailureAllow                    // the request passes
	OnFailureDeny                     // the request is denied
	OnFailureError                    // the call returns an error and no decision
	// the program counts on its own, which only package ratelimit can do; elsewhere it is OnFailureError
	OnFailureLocal
)

func (f OnFailure) String() string {
	switch f {
	case OnFailureDefault:
		return "default"
	case OnFailureAllow:
		return "allow"
	case OnFailureDeny:
		return "deny"
	case OnFailureError:
		return "error"
	case OnFailureLocal:
		return "local"
	default:
		return "unknown"
	}
}

// Failed returns the answer to a request whose limits cannot be checked because of err.
func (f OnFailure) Failed(err error) (Decision, error) {
	switch f {
	case OnFailureAllow:
		return Decision{Allowed: true, Source: FailOpen, Err: err}, nil
	case OnFailureDeny:
		return Decision{Source: FailClosed, Err: err}, nil
	default:
		return Decision{}, err
	}
}
