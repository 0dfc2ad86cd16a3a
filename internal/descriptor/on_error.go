package descriptor

// OnError is what becomes of a descriptor whose counter the backend cannot answer for.
type OnError uint8

// The choices of on_error. A rule's goes before its domain's, and that before the server's.
const (
	OnErrorDefault OnError = iota // not said here
	OnErrorError                  // the request gets an error: the caller's own failure mode decides
	OnErrorAllow                  // it passes
	OnErrorDeny                   // it is over its limit
	OnErrorLocal                  // it is counted in this process, at the limit divided by the number of replicas
)

// OnErrorNames are the names in rule files and flags; OnErrorDefault has none.
var OnErrorNames = []string{OnErrorError: "error", OnErrorAllow: "allow", OnErrorDeny: "deny", OnErrorLocal: "local"}

// ParseOnError returns the choice of that name, or OnErrorDefault.
func ParseOnError(name string) OnError {
	for o := OnErrorError; o <= OnErrorLocal; o++ {
		if name == OnErrorNames[o] {
			return o
		}
	}
	return OnErrorDefault
}
