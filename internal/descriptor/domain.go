package descriptor

// Admission is how the descriptors of one request affect each other.
type Admission uint8

// The admissions. AdmissionDefault means the server's, which is Independent unless the operator sets another.
const (
	AdmissionDefault Admission = iota
	Independent                // each descriptor counts for itself
	AllOrNothing               // a denied request adds no hits to any counter
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
