package descriptor

// OnError is what to do with a descriptor when the backend cannot read its counter.
type OnError uint8

// The choices of on_error. A rule's choice overrides its domain's, which overrides the server's.
const (
	OnErrorDefault OnError = iota // not set here
	OnErrorError                  // the request gets an error, and the caller's own failure mode decides
	OnErrorAllow                  // the descriptor passes
	OnErrorDeny                   // the descriptor is over its limit
	OnErrorLocal                  // the descriptor is counted in this replica, at the limit divided by the number of replicas
)

// OnErrorNames are the names in rule files and flags; OnErrorDefault has none.
var OnErrorNames = []string{OnErrorError: "error", OnErrorAllow: "allow", OnErrorDeny: "deny", OnErrorLocal: "local"}

// ParseOnError returns the choice with that name, or OnErrorDefault if there is none.
func ParseOnError(name string) OnError {
	for o := OnErrorError; o <= OnErrorLocal; o++ {
		if name == OnErrorNames[o] {
			return o
		}
	}
	return OnErrorDefault
}
