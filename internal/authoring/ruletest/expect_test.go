package ruletest

import "testing"

// The names are in the order of descriptors and limits. A test file need not follow that order.
func TestWouldDenyInAnyOrder(t *testing.T) {
	v := verdict{wouldDeny: &want[[]string]{value: []string{"b", "a"}}}
	for _, c := range []struct {
		got  []string
		same bool
	}{{[]string{"a", "b"}, true}, {[]string{"b", "a"}, true}, {[]string{"a"}, false}, {[]string{"a", "b", "b"}, false}, {nil, false}} {
		var diff differences
		diff.always(&v, &observed{}, answer{wouldDeny: c.got}, "")
		if (len(diff) == 0) != c.same {
			t.Errorf("%q: %v", c.got, diff)
		}
	}
}
