package main

import (
	"testing"
	"time"
)

// CPU time is more exact than the hundredths of a second of /proc.
func TestCPUTime(t *testing.T) {
	p, err := startProcess("/bin/sh", []string{"-c", "while :; do :; done"}, nil, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := true
	var last float64
	for deadline := time.Now().Add(20 * time.Second); last < 0.05; {
		if time.Now().After(deadline) {
			t.Fatalf("a process that is always busy has used %v s", last)
		}
		now, err := cpuOf(p.pid())
		if err != nil || now < last {
			t.Fatalf("%v s after %v s, %v", now, last, err)
		}
		whole = whole && now*100 == float64(int(now*100))
		last = now
	}
	if whole {
		t.Error("CPU time comes in hundredths of a second")
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := cpuOf(p.pid()); err == nil {
		t.Error("a process that has ended has CPU time")
	}
}
