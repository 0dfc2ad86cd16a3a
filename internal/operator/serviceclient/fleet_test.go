package serviceclient

import (
	"bytes"
	"testing"
	"time"
)

// The table marks what an operator should look at, and no text of a process changes the terminal.
func TestWriteFleet(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := &Fleet{
		ThisProcess: "b", Shared: true, ReadAt: now.Add(-time.Minute), Error: "Redis \x1b[31mdoes not answer", More: 1, Unreadable: 2,
		Processes: []Process{
			{ID: "a", Host: "evil\x1b[31m\n", Version: "1", Started: now.Add(-time.Hour), State: "gone", Seen: now.Add(-20 * time.Second)},
			{
				ID: "b", Host: "host-b", Version: "1.2.3", Started: now.Add(-48 * time.Hour), State: "live", Seen: now, RulesDiffer: true, OverridesDiffer: true,
				Overrides: &ProcessOverrides{Source: "redis", Version: 12, Count: 3, Error: "no answer"},
				Redis:     []ProcessRedis{{Name: "redis", OpenBreakers: []string{"10.0.0.1:6379", "10.0.0.2:6379"}}}, Caches: []ProcessCache{{"leases", 4}, {"over-limit cache", 5}},
			},
			{ID: "c", Host: "host-c", State: "stopped", Seen: now.Add(-time.Minute), Started: now, Redis: []ProcessRedis{{Name: "redis"}}},
		},
	}
	b := &f.Processes[1]
	b.Rules.Checksum, b.Rules.Count, b.Rules.Stale, b.Rules.Rejected = 2986002304087478, 5, 1, 1
	b.PerSecond.Passed, b.PerSecond.Refused = 100.25, 0.5
	var text, alone bytes.Buffer
	if err := WriteFleet(&text, f, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet.txt", text.String())
	if bytes.ContainsRune(text.Bytes(), '\x1b') {
		t.Error("the terminal changes")
	}
	if err := WriteFleet(&alone, &Fleet{ThisProcess: "c", Error: "away", Processes: f.Processes[2:]}, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet_alone.txt", alone.String())
}
