package descriptor

// RequestOverride is what a domain does with the limits that requests bring along.
type RequestOverride uint8

// The choices of request_override.
const (
	RequestOverrideDefault RequestOverride = iota // not set: RequestHonour
	RequestHonour                                 // the request's limit replaces the rule's
	RequestMin                                    // the same, unless the rule admits fewer hits per second
	RequestIgnore                                 // the rule's limit applies
)

// RequestOverrideNames are the names in rule files; RequestOverrideDefault has none.
var RequestOverrideNames = []string{RequestHonour: "honour", RequestMin: "min", RequestIgnore: "ignore"}
