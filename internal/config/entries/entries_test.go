package entries

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestEntries(t *testing.T) {
	type all = []descriptor.Entry
	for text, want := range map[string]all{
		"a=b":           {{Key: "a", Value: "b"}},
		"a=b, c=d":      {{Key: "a", Value: "b"}, {Key: "c", Value: "d"}},
		"a=":            {{Key: "a"}},
		"a=b=c":         {{Key: "a", Value: "b=c"}},
		`a=b\,c,d=\\\e`: {{Key: "a", Value: "b,c"}, {Key: "d", Value: `\\e`}},
		"path=/v1/x?y":  {{Key: "path", Value: "/v1/x?y"}},
	} {
		got, err := Parse(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
		if back, err := Parse(Format(got)); err != nil || cmp.Diff(want, back) != "" {
			t.Errorf("%s is written %s: %v", text, Format(got), err)
		}
	}
	for _, text := range []string{"", "a", "=b", "a=b,", ",a=b", "a=b,c"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
