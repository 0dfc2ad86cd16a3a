package descriptor

import "slices"

// The choices that a domain has. Their zero value means that the file does not choose.

// choice returns the choice with a name, or the zero value for an unknown name.
func choice[T ~uint8](names []string, name string) T { return T(max(slices.Index(names, name), 0)) }

// Admission is how the descriptors of one request affect each other.
type Admission uint8

// The admissions. AdmissionDefault means the server's, which is Independent unless the operator sets another.
const (
	AdmissionDefault Admission = iota
	Independent                // each descriptor counts for itself
	AllOrNothing               // a denied request adds no hits to any counter
)

// AdmissionNames are the names in rule files and flags; AdmissionDefault has no name.
var AdmissionNames = []string{Independent: "independent", AllOrNothing: "all_or_nothing"}

// ParseAdmission returns the admission with that name, or AdmissionDefault for an unknown name.
func ParseAdmission(name string) Admission {
	return choice[Admission](AdmissionNames, name)
}

// OnError is what to do with a descriptor when the backend cannot read its counter.
type OnError uint8

// The choices of on_error. A rule's choice overrides its domain's, which overrides the server's.
const (
	OnErrorDefault OnError = iota // not set here
	OnErrorError                  // the request gets an error, and the client's failure mode decides
	OnErrorAllow                  // the descriptor passes
	OnErrorDeny                   // the descriptor is over its limit
	// the descriptor is counted in this replica, at the limit divided by the number of replicas
	OnErrorLocal
)

// OnErrorNames are the names in rule files and flags; OnErrorDefault has no name.
var OnErrorNames = []string{OnErrorError: "error", OnErrorAllow: "allow", OnErrorDeny: "deny", OnErrorLocal: "local"}

// ParseOnError returns the choice with that name, or OnErrorDefault for an unknown name.
func ParseOnError(name string) OnError {
	return choice[OnError](OnErrorNames, name)
}

// Refunds controls requests that give hits back.
type Refunds uint8

// The choices of refunds.
const (
	RefundsDefault Refunds = iota // not set: RefundsAllow
	RefundsAllow
	RefundsDeny // they only read the counter
)

// RefundsNames are the names in rule files; RefundsDefault has no name.
var RefundsNames = []string{RefundsAllow: "allow", RefundsDeny: "deny"}

// RequestOverride controls the limits that requests carry.
type RequestOverride uint8

// The choices of request_override.
const (
	RequestOverrideDefault RequestOverride = iota // not set: RequestHonour
	RequestHonour                                 // the request's limit counts instead of the rule's
	RequestMin                                    // both count
	RequestIgnore                                 // only the rule's limits count
)

// RequestOverrideNames are the names in rule files; RequestOverrideDefault has no name.
var RequestOverrideNames = []string{RequestHonour: "honour", RequestMin: "min", RequestIgnore: "ignore"}
