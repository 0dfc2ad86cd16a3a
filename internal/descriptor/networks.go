package descriptor

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// networks finds the smallest network that contains an address or a network. Its cost does not depend on the number of
// networks or their nesting.
type networks struct {
	list  []network // networks in file order
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

// find returns the child for the smallest network that contains all of p, or noNode if none does.
func (n *networks) find(p netip.Prefix) node {
	if p.IsSingleIP() {
		if child, found := n.table.Lookup(p.Addr()); found {
			return child
		}
	} else if child, found := n.table.LookupPrefix(p); found {
		return child
	}
	return noNode
}
