package main

import "testing"

func TestGarbage(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 16 << 20: 800, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 4 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("of %d MiB live: %d %%, want %d %%", live>>20, got, want)
		}
	}
}
