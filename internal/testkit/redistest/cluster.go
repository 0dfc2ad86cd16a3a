package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	primaries = 3
	slots     = 16384

	// The node timeout in milliseconds: after this time, nodes consider another one dead. It is short while the cluster
	// forms, and again from the first kill, pause or failover. Otherwise it is long, because a node may wait for seconds
	// for a CPU on a busy machine, and a cluster that gives up a node stops. With the long one, nodes learn each other's
	// roles too slowly for a failover.
	deathNoticed, neverDead = "1500", "60000"

	// failoverEnds is the time after which a planned failover is tried again: the nodes give up after 5 s.
	failoverEnds = 6 * time.Second
)

// Cluster is three primaries and a replica of each.
type Cluster struct {
	Nodes []*Server // the first three were the primaries at the start, each with a third of the slots

	setup      Setup
	noFailover bool
}

// StartCluster starts six nodes and returns when all of them agree that the cluster is well.
func StartCluster(t testing.TB, setup Setup) *Cluster {
	t.Helper()
	c := &Cluster{setup: setup}
	for range 2 * primaries {
		c.Nodes = append(c.Nodes, start(t, node, setup.Password, func(_ *Server, port string) []string {
			args := setup.server(port)
			if setup.TLS != nil {
				args = append(args, "--tls-cluster", "yes")
			}
			return append(args, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
				"--cluster-node-timeout", deathNoticed, "--cluster-replica-validity-factor", "0")
		}))
	}
	for i, n := range c.Nodes {
		n.dies = func(t testing.TB) { t.Helper(); c.setTimeout(t, deathNoticed) }
		n.do(t, "cluster", "set-config-epoch", i+1) // otherwise they would have to settle on epochs one by one
		if i > 0 {
			h, p, _ := net.SplitHostPort(n.Addr)
			c.Nodes[0].do(t, "cluster", "meet", h, p)
		}
		if i < primaries {
			n.do(t, "cluster", "addslotsrange", i*slots/primaries, (i+1)*slots/primaries-1)
		}
	}
	await(t, "the nodes to know each other", func(ctx context.Context) error {
		for _, n := range c.Nodes {
			if err := n.expect(ctx, "cluster_known_nodes", strconv.Itoa(len(c.Nodes)), "cluster", "info"); err != nil {
				return err
			}
		}
		return nil
	})
	for i, replica := range c.Nodes[primaries:] {
		id := c.Nodes[i].do(t, "cluster", "myid")
		await(t, "a node to become a replica", func(ctx context.Context) error {
			return replica.admin.Do(ctx, "cluster", "replicate", id).Err()
		})
	}
	c.Await(t)
	c.setTimeout(t, neverDead)
	return c
}

// NoFailover makes the cluster wait for nodes that die: no replica takes over, for a minute.
func (c *Cluster) NoFailover() { c.noFailover = true }

// setTimeout sets after how many milliseconds the nodes that run consider others dead.
func (c *Cluster) setTimeout(t testing.TB, milliseconds string) {
	t.Helper()
	if c.noFailover {
		return
	}
	for _, n := range c.Nodes {
		if n.up() {
			n.do(t, "config", "set", "cluster-node-timeout", milliseconds)
		}
	}
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.Addr)
	}
	return all
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	for _, n := range c.Nodes {
		if n.up() {
			return int(n.do(t, "cluster", "keyslot", key).(int64))
		}
	}
	t.Fatal("no node runs")
	return 0
}

// Primary returns the node that has a slot, once all that run agree.
func (c *Cluster) Primary(t testing.TB, slot int) *Server {
	t.Helper()
	var owner *Server
	await(t, fmt.Sprintf("the nodes to agree on the owner of slot %d", slot), func(ctx context.Context) error {
		agreed := ""
		for _, n := range c.Nodes {
			if !n.up() {
				continue
			}
			members, err := n.members(ctx)
			if err != nil {
				return err
			}
			answer := "no node"
			for _, m := range members {
				if m.primary && !m.failed && m.has(slot) {
					answer = m.addr
				}
			}
			if agreed != "" && answer != agreed {
				return fmt.Errorf("one node answers %s, another %s", agreed, answer)
			}
			agreed = answer
		}
		if owner = c.at(agreed); owner == nil {
			return errors.New("they answer " + agreed)
		}
		return nil
	})
	return owner
}

// Replicas returns the replicas of a primary, as it sees them itself. A busy node may take a moment to see one again.
func (c *Cluster) Replicas(t testing.TB, primary *Server) []*Server {
	t.Helper()
	id := primary.do(t, "cluster", "myid").(string)
	var replicas []*Server
	await(t, "a replica of the node on "+primary.Addr, func(ctx context.Context) error {
		members, err := primary.members(ctx)
		if err != nil {
			return err
		}
		replicas = nil
		for _, m := range members {
			if m.replicaOf == id {
				replicas = append(replicas, c.at(m.addr))
			}
		}
		if len(replicas) == 0 {
			return fmt.Errorf("of its %d members none is a replica of %s", len(members), id)
		}
		return nil
	})
	return replicas
}

func (c *Cluster) at(addr string) *Server {
	for _, n := range c.Nodes {
		if n.Addr == addr {
			return n
		}
	}
	return nil
}

// Await returns when all running nodes report a healthy cluster and agree on the owner of each slot, and the
// replicas have their primary's data. A node that was killed or paused has lost its slots to a replica by then.
func (c *Cluster) Await(t testing.TB) {
	t.Helper()
	await(t, "the nodes to agree", func(ctx context.Context) error {
		var agreed []string
		for _, n := range c.Nodes {
			if !n.up() {
				continue
			}
			for _, want := range [][2]string{
				{"cluster_state", "ok"}, {"cluster_slots_ok", strconv.Itoa(slots)}, {"cluster_size", strconv.Itoa(primaries)},
			} {
				if err := n.expect(ctx, want[0], want[1], "cluster", "info"); err != nil {
					return err
				}
			}
			members, err := n.members(ctx)
			if err != nil {
				return err
			}
			owners := make([]string, slots)
			for _, m := range members {
				if owner := c.at(m.addr); len(m.slots) > 0 && (owner == nil || !owner.up()) {
					return fmt.Errorf("the node on %s considers the one on %s a primary, which does not run", n.Addr, m.addr)
				}
				for _, r := range m.slots {
					for slot := r[0]; slot <= r[1]; slot++ {
						owners[slot] = m.addr
					}
				}
			}
			if agreed != nil && !slices.Equal(owners, agreed) {
				return errors.New("two nodes see different owners")
			}
			agreed = owners
			replica := false
			for _, m := range members {
				if m.replicaOf != "" && m.addr == n.Addr {
					replica = true
				}
				if peer := c.at(m.addr); m.failed && peer != nil && peer.up() {
					return fmt.Errorf("the node on %s considers the one on %s dead", n.Addr, m.addr)
				}
			}
			if replica {
				if err := n.hasData(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Failover starts a planned failover, in which a replica takes over from its primary, and returns when all running
// nodes agree.
func (c *Cluster) Failover(t testing.TB, replica *Server) {
	t.Helper()
	c.setTimeout(t, deathNoticed)
	replica.do(t, "cluster", "failover")
	asked := time.Now()
	await(t, "the replica to become primary", func(ctx context.Context) error {
		err := replica.expect(ctx, "role", "master", "info", "replication")
		if err != nil && time.Since(asked) > failoverEnds {
			asked = time.Now()
			err = errors.Join(err, replica.admin.Do(ctx, "cluster", "failover").Err())
		}
		return err
	})
	c.Await(t)
}

// member is one node as another one, or itself, describes it.
type member struct {
	addr      string
	primary   bool
	failed    bool   // certainly or possibly
	replicaOf string // the primary's id
	slots     [][2]int
}

func (m *member) has(slot int) bool {
	for _, r := range m.slots {
		if slot >= r[0] && slot <= r[1] {
			return true
		}
	}
	return false
}

// members reads CLUSTER NODES: id, address, flags, primary's id, ping, pong, epoch, link, then slots.
func (s *Server) members(ctx context.Context) ([]member, error) {
	text, err := s.admin.Do(ctx, "cluster", "nodes").Text()
	if err != nil {
		return nil, err
	}
	var all []member
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 8 {
			return nil, fmt.Errorf("read CLUSTER NODES: %q", line)
		}
		address, _, _ := strings.Cut(words[1], "@")
		m := member{addr: address}
		for flag := range strings.SplitSeq(words[2], ",") {
			switch flag {
			case "master":
				m.primary = true
			case "slave":
				m.replicaOf = words[3]
			case "fail", "fail?":
				m.failed = true
			}
		}
		for _, w := range words[8:] {
			if strings.HasPrefix(w, "[") {
				continue // a migration in progress
			}
			first, last, isRange := strings.Cut(w, "-")
			if !isRange {
				last = first
			}
			from, err1 := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("read CLUSTER NODES: %w", err)
			}
			m.slots = append(m.slots, [2]int{from, to})
		}
		all = append(all, m)
	}
	return all, nil
}
