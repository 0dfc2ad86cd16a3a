package metric_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

func create(name string) *string { return &name }

func named(all []*string) (names []string) {
	for _, v := range all {
		names = append(names, *v)
	}
	slices.Sort(names)
	return names
}

// Names from requests are bounded in number and length. Names from an operator have additional room, which requests
// cannot use.
func TestNames(t *testing.T) {
	others := "others"
	n := metric.NewNames(2, others, &others)
	find := func(name string) string { return *n.Find([]byte(name), create) }
	for _, c := range []struct{ name, want string }{
		{"a", "a"}, {strings.Repeat("x", 513), others}, {others, others}, {"b", "b"}, {"c", others}, {"a", "a"},
	} {
		if got := find(c.name); got != c.want {
			t.Errorf("find %q: got %q, want %q", c.name, got, c.want)
		}
	}
	long := strings.Repeat("y", 1000)
	if n.Add("d", 1, create) != nil {
		t.Error("there was room for a third name")
	}
	if n.Add(long, 2, create) == nil || n.Add("d", 2, create) == nil || n.Add("e", 2, create) != nil || n.Add("a", 2, create) == nil {
		t.Error("there is not room for exactly twice as many names")
	}
	if got := find(long) + find("d") + find("e"); got != long+"d"+others {
		t.Errorf("found %q", got)
	}
	if got := named(n.All()); n.Count() != 4 || !slices.Equal(got, []string{"a", "b", "d", others, long}) {
		t.Errorf("%d names: %q", n.Count(), got)
	}
}

// The total length of names from requests is bounded too. Names from rules are not.
func TestBytesOfNamesAreBounded(t *testing.T) {
	others := "others"
	n := metric.NewNames(1000, others, &others)
	bytes := 0
	for i := range 1000 {
		name := fmt.Sprintf("%0500d", i)
		if got := *n.Find([]byte(name), create); got == name {
			bytes += len(name)
		} else if got != others {
			t.Fatalf("%d: %s", i, got)
		}
	}
	if bytes != 128_000 {
		t.Errorf("names of %d bytes are kept, want 128000", bytes)
	}
	if n.Add(strings.Repeat("r", 1000), 2, create) == nil {
		t.Error("there is no room for a rule")
	}
}

// Concurrent calls with new names get one value for each name, and no more values than there is room for.
func TestNamesAtTheSameTime(t *testing.T) {
	const most = 100
	others := "others"
	n := metric.NewNames(most, others, &others)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2 * most {
				name := fmt.Sprint(i)
				v := n.Find([]byte(name), create)
				if v != n.Other && (*v != name || v != n.Find([]byte(name), create)) {
					t.Errorf("%s has the value of %s, or two values", name, *v)
				}
			}
		})
	}
	wg.Wait()
	if len(n.All()) != most+1 || n.Count() != most {
		t.Errorf("%d values, %d names, want %d", len(n.All()), n.Count(), most)
	}
}
