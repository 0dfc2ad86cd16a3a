package descriptor

// Admission is how the descriptors of one request weigh on each other.
type Admission uint8

// The admissions. The default one is the server's, which is Independent unless the operator says otherwise.
const (
	AdmissionDefault Admission = iota
	Independent                // each descriptor counts for itself
	AllOrNothing               // a refused request consumes nothing anywhere
)

// AdmissionNames are the names in rule files and flags; AdmissionDefault has none.
var AdmissionNames = []string{Independent: "independent", AllOrNothing: "all_or_nothing"}

// ParseAdmission returns the admission of that name, or AdmissionDefault.
func ParseAdmission(name string) Admission {
	for a := Independent; a <= AllOrNothing; a++ {
		if name == AdmissionNames[a] {
			return a
		}
	}
	return AdmissionDefault
}

// HeaderFamilies is a set of conventions for a client's limits in headers.
type HeaderFamilies uint8

// The families.
const (
	HeadersReference  HeaderFamilies = 1 << iota // RateLimit-Limit, -Remaining and -Reset, or the names that the operator gave
	HeadersDraft03                               // X-RateLimit-Limit with all policies, -Remaining, -Reset: as Envoy writes them
	HeadersIETF                                  // RateLimit-Policy and RateLimit, the structured fields of the IETF draft
	HeadersRetryAfter                            // Retry-After on refusals
)

// HeaderFamilyNames are the names of the families in rule files and flags, in the order of their bits.
var HeaderFamilyNames = []string{"ratelimit", "x-ratelimit", "ietf", "retry-after"}

// ParseHeaderFamily returns the family of that name, or 0.
func ParseHeaderFamily(name string) HeaderFamilies {
	for i, n := range HeaderFamilyNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}
