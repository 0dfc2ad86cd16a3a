package main

import "testing"

func TestGarbage(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 16 << 20: 800, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 4 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("of %d MiB live: %d %%, want %d %%", live>>20, got, want)
		}
	}
}

// Memory held for clients reduces the room for garbage. Memory that the rules and the counters need does not.
func TestMemoryLimit(t *testing.T) {
	const most, fixed = 128, besidesHeap >> 20
	for _, c := range []struct{ live, held, want int64 }{
		{6, 0, 6 + 224}, {70, 64, 6 + 224}, {134, 128, 6 + 224}, {20, 64, 224},
		{100, 0, 100 + 224}, {1000, 0, 1000 + 872 + 224}, {1128, 128, 1000 + 872 + 224},
	} {
		if got := memoryLimit(c.live<<20, c.held<<20, most<<20) >> 20; got != c.want+fixed {
			t.Errorf("%d MiB live, %d held: %d MiB, want %d", c.live, c.held, got, c.want+fixed)
		}
	}
}
