package redistest

import (
	"net"
	"testing"
)

// Migration moves a slot from one primary to another, step by step. Between the steps clients get the answers of
// a real migration: the source redirects them to the target once for keys that have moved (ASK), and in the end
// for good (MOVED).
type Migration struct {
	Slot     int
	From, To *Server

	cluster *Cluster
}

// Migrate starts to move a slot: both nodes have been told about the migration, and no key has moved yet.
func (c *Cluster) Migrate(t testing.TB, slot int, to *Server) *Migration {
	t.Helper()
	m := &Migration{Slot: slot, From: c.Primary(t, slot), To: to, cluster: c}
	if m.From == to {
		t.Fatalf("slot %d is already at its target", slot)
	}
	to.do(t, "cluster", "setslot", slot, "importing", m.From.do(t, "cluster", "myid"))
	m.From.do(t, "cluster", "setslot", slot, "migrating", to.do(t, "cluster", "myid"))
	return m
}

// MoveKeys moves at most this many keys of the slot (0 for all), and returns how many it moved.
func (m *Migration) MoveKeys(t testing.TB, most int) int {
	t.Helper()
	moved := 0
	for most == 0 || moved < most {
		batch := 100
		if most > 0 {
			batch = min(batch, most-moved)
		}
		keys := m.From.do(t, "cluster", "getkeysinslot", m.Slot, batch).([]any)
		if len(keys) == 0 {
			break
		}
		m.move(t, keys)
		moved += len(keys)
	}
	return moved
}

func (m *Migration) move(t testing.TB, keys []any) {
	t.Helper()
	h, p, _ := net.SplitHostPort(m.To.Addr)
	command := []any{"migrate", h, p, "", 0, patience.Milliseconds()}
	if m.cluster.setup.Password != "" {
		command = append(command, "auth", m.cluster.setup.Password)
	}
	m.From.do(t, append(append(command, "keys"), keys...)...)
}

// Finish moves the remaining keys, gives the slot to To, and returns when all running nodes agree.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	m.MoveKeys(t, 0) // From redirects clients that would create a key, so no key is left behind
	id := m.To.do(t, "cluster", "myid")
	m.To.do(t, "cluster", "setslot", m.Slot, "node", id)
	m.From.do(t, "cluster", "setslot", m.Slot, "node", id)
	m.cluster.Await(t)
}
