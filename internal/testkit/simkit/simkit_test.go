package simkit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/simkit"
)

func TestOrder(t *testing.T) {
	w := simkit.New(1)
	var trace strings.Builder
	w.Trace = &trace
	w.At(5, func() { w.Note("third") })
	w.At(3, func() {
		w.Note("first %d", 1)
		w.At(1, func() { w.Note("second") }) // the past is now
		w.After(7, func() { w.Note("after the end") })
	})
	w.Run(10)
	if got := strings.Fields(trace.String()); !slices.Equal(got, []string{"0.000003", "first", "1", "0.000003", "second", "0.000005", "third"}) || w.Now() != 10 {
		t.Errorf("%v, now %d", got, w.Now())
	}
}

func TestClock(t *testing.T) {
	c := simkit.NewClock(1000, 500)
	if got := c.Read(2_000_000); got != 2_002_000 {
		t.Error(got)
	}
	c.Step(2_000_000, -1_000_000)
	if got := c.Read(2_000_000); got != 1_002_000 {
		t.Error(got)
	}
	c.Drift(2_000_000, -1000)
	if got := c.Read(3_000_000); got != 2_001_000 {
		t.Error(got)
	}
}

// messages sends a thousand messages and returns how often each arrived, and when the latest one did.
func messages(seed uint64, change func(*simkit.Network)) (arrived map[int]int, latest int64) {
	w := simkit.New(seed)
	n := simkit.Network{World: w, Least: 10, Most: 20, Latest: 1000}
	change(&n)
	arrived = make(map[int]int)
	for i := range 1000 {
		w.At(int64(i), func() {
			n.Send("a", "b", func() { arrived[i]++; latest = max(latest, w.Now()-int64(i)) })
		})
	}
	w.Run(10_000)
	return arrived, latest
}

func TestNetwork(t *testing.T) {
	for name, x := range map[string]struct {
		change      func(*simkit.Network)
		least, most int // messages that arrive
		twice       bool
		latest      int64
	}{
		"good":      {func(*simkit.Network) {}, 1000, 1000, false, 20},
		"lossy":     {func(n *simkit.Network) { n.Lost = 0.5 }, 400, 600, false, 20},
		"late":      {func(n *simkit.Network) { n.Late = 0.5 }, 1000, 1000, false, 1000},
		"repeating": {func(n *simkit.Network) { n.Repeated = 0.5 }, 1000, 1000, true, 1020},
		"cut":       {func(n *simkit.Network) { n.Cut("a", "b", 600) }, 400, 400, false, 20},
		"other way": {func(n *simkit.Network) { n.Cut("b", "a", 600) }, 1000, 1000, false, 20},
		"healed":    {func(n *simkit.Network) { n.Cut("a", "b", 600); n.Heal() }, 1000, 1000, false, 20},
	} {
		arrived, latest := messages(1, x.change)
		twice := false
		for _, n := range arrived {
			twice = twice || n > 1
		}
		if n := len(arrived); n < x.least || n > x.most || twice != x.twice || latest > x.latest || latest < x.latest*9/10 {
			t.Errorf("%s: %d messages arrive, twice %v, the latest after %d", name, n, twice, latest)
		}
	}
	a, _ := messages(1, func(n *simkit.Network) { n.Lost = 0.5 })
	b, _ := messages(1, func(n *simkit.Network) { n.Lost = 0.5 })
	c, _ := messages(2, func(n *simkit.Network) { n.Lost = 0.5 })
	if fmt.Sprint(a) != fmt.Sprint(b) || fmt.Sprint(a) == fmt.Sprint(c) {
		t.Error("the seed does not decide what is lost")
	}
}

func TestReduce(t *testing.T) {
	var steps []int
	for i := range 100 {
		steps = append(steps, i)
	}
	tries := 0
	fails := func(part []int) bool {
		tries++
		return slices.Contains(part, 17) && slices.Contains(part, 60)
	}
	if got := simkit.Reduce(steps, 1000, fails); !slices.Equal(got, []int{17, 60}) {
		t.Errorf("%v after %d tries", got, tries)
	}
	if got := simkit.Reduce(steps, 10, func([]int) bool { return true }); len(got) != 0 {
		t.Errorf("%v", got)
	}
	tries = 0
	if got := simkit.Reduce(steps, 7, func([]int) bool { tries++; return false }); len(got) != 100 || tries != 7 {
		t.Errorf("%d steps after %d tries", len(got), tries)
	}
}
