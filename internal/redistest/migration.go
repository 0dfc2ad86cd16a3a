package redistest

import (
	"net"
	"testing"
)

// Migration is the way of a slot from one primary to another, step by step. Between the steps clients are answered as in
// a real one: the source asks them to try the target for keys that it no longer has (ASK), and when it is finished sends
// them there for good (MOVED).
type Migration struct {
	Slot     int
	From, To *Server

	cluster *Cluster
}

// Migrate begins to move a slot: From hands it out, To takes it, and no key has moved yet.
func (c *Cluster) Migrate(t testing.TB, slot int, to *Server) *Migration {
	t.Helper()
	m := &Migration{Slot: slot, From: c.Primary(t, slot), To: to, cluster: c}
	if m.From == to {
		t.Fatalf("slot %d is where it is to go", slot)
	}
	to.do(t, "cluster", "setslot", slot, "importing", m.From.do(t, "cluster", "myid"))
	m.From.do(t, "cluster", "setslot", slot, "migrating", to.do(t, "cluster", "myid"))
	return m
}

// MoveKeys moves the keys of the slot, at most so many (0: all), and returns how many it moved.
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

// Finish moves what is left, gives the slot to To, and returns when all nodes that run agree.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	m.MoveKeys(t, 0) // From sends clients on that would make a key anew, so that none is left afterwards
	id := m.To.do(t, "cluster", "myid")
	m.To.do(t, "cluster", "setslot", m.Slot, "node", id)
	m.From.do(t, "cluster", "setslot", m.Slot, "node", id)
	m.cluster.Await(t)
}
