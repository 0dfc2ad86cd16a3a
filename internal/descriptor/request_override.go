package descriptor

// RequestOverride is what a domain does with the limits that requests bring along.
type RequestOverride uint8

// The choices of request_override.
const (
	RequestOverrideDefault RequestOverride = iota // not set: RequestHonour
	RequestHonour                                 // the request's limit counts instead of the rule's
	RequestMin                                    // both count
	RequestIgnore                                 // only the rule's limits count
)

// RequestOverrideNames are the names in rule files; RequestOverrideDefault has none.
var RequestOverrideNames = []string{RequestHonour: "honour", RequestMin: "min", RequestIgnore: "ignore"}
