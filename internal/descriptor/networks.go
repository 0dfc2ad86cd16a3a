package descriptor

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// networks finds the smallest network that contains an address. Its cost does not depend on the number of networks or their nesting.
type networks struct {
	list  []network // in file order
	table bart.Table[node]
}

// network is one value_cidr.
type network struct {
	prefix netip.Prefix
	child  node
}

func (n *networks) insert(prefix netip.Prefix, child node) {
	n.list = append(n.list, network{prefix, child})
	n.table.Insert(prefix, child)
}

// find returns the child for an address, or noNode if no network contains it.
func (n *networks) find(a netip.Addr) node {
	if child, found := n.table.Lookup(a); found {
		return child
	}
	return noNode
}
