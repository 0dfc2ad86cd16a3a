package region

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The rule language refuses escrow where a permit cannot be granted. It does not import this package, so it has the bounds from package
// descriptor.
func TestBoundsOfTheRuleLanguage(t *testing.T) {
	if s := descriptor.LeastGrant.Microseconds(); s != shortestLife || descriptor.LeastForRegion != leastForEach || descriptor.LogGrants != logPart {
		t.Errorf("package descriptor has %d, %d and %d, this package %d, %d and %d", s, descriptor.LeastForRegion, descriptor.LogGrants, int64(shortestLife), leastForEach, logPart)
	}
}
