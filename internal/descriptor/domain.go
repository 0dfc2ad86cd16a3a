package descriptor

// Admission is how the descriptors of one request affect each other.
type Admission uint8

// The admissions. AdmissionDefault means the server's, which is Independent unless the operator sets another.
const (
	AdmissionDefault Admission = iota
	Independent                // each descriptor counts for itself
	AllOrNothing               // a refused request adds no hits to any counter
)

// AdmissionNames are the names in rule files and flags; AdmissionDefault has none.
var AdmissionNames = []string{Independent: "independent", AllOrNothing: "all_or_nothing"}

// ParseAdmission returns the admission with that name, or AdmissionDefault if there is none.
func ParseAdmission(name string) Admission {
	for a := Independent; a <= AllOrNothing; a++ {
		if name == AdmissionNames[a] {
			return a
		}
	}
	return AdmissionDefault
}

// HeaderFamilies is a set of header families. A family is a convention to send a client its limits in headers.
type HeaderFamilies uint8

// The families.
const (
	HeadersReference  HeaderFamilies = 1 << iota // RateLimit-Limit, -Remaining and -Reset, or names set by the operator
	HeadersDraft03                               // X-RateLimit-Limit with all policies, -Remaining and -Reset, as Envoy writes them
	HeadersIETF                                  // RateLimit-Policy and RateLimit, the structured fields of the IETF draft
	HeadersRetryAfter                            // Retry-After on refusals
)

// HeaderFamilyNames are the names of the families in rule files and flags, in the order of their bits.
var HeaderFamilyNames = []string{"ratelimit", "x-ratelimit", "ietf", "retry-after"}

// ParseHeaderFamily returns the family with that name, or 0 if there is none.
func ParseHeaderFamily(name string) HeaderFamilies {
	for i, n := range HeaderFamilyNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}
