package assigner

import (
	"testing"
	"time"
)

func TestShrink(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var s shrink
	for _, c := range []struct {
		after time.Duration
		kept  int
		want  bool
	}{
		{0, 0, false},
		{1 * time.Second, 100 << 20, false},
		{2 * time.Second, 60 << 20, false}, // most of it is in use
		{3 * time.Second, 1 << 20, true},
		{4 * time.Second, 1 << 20, false},
		{5 * time.Second, 100 << 20, false},
		{6 * time.Second, 0, false}, // soon after the last time
		{33 * time.Second, 0, true},
		{90 * time.Second, 20 << 20, false},
		{91 * time.Second, 0, false}, // little
	} {
		if got := s.due(start.Add(c.after), c.kept); got != c.want {
			t.Errorf("after %s, with %d bytes: %t", c.after, c.kept, got)
		}
	}
}
