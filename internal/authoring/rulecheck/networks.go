package rulecheck

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// network is a value_cidr.
type network struct {
	prefix netip.Prefix
	node   *node
}

// networks checks the networks of one key. An exact value does not make a network of the same single address
// superfluous: the address has other notations (::ffff:10.0.0.7), and only the network matches them.
func (c *checker) networks(nodes []*node) {
	var all []network
	for _, n := range nodes {
		if n.kind == descriptor.MatchCIDR {
			if p, err := descriptor.ParseCIDR(n.value); err == nil {
				all = append(all, network{p, n})
			}
		}
	}
	// In this order every network comes directly before the networks within it.
	slices.SortFunc(all, func(a, b network) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	idle := make(map[*node]bool)
	for i, n := range all {
		end := i + 1
		for end < len(all) && n.prefix.Contains(all[end].prefix.Addr()) {
			end++
		}
		if covered(n.prefix, all[i+1:end]) {
			idle[n.node] = true
			c.add(Warning, n.node.valueAt, codeNeverMatches, "remove it, or some of the others",
				"no address reaches %s: smaller networks cover all of it", yamlform.Quote(n.node.value))
		}
	}
	c.nested(all, idle)
}

// addressKeys are the keys under which Envoy sends addresses.
var addressKeys = []string{"remote_address", maskedAddress}

// looksLikeAddress is a text that is an address, or that its author took for one.
var looksLikeAddress = regexp.MustCompile(`^[0-9]+(\.[0-9]+)+(:[0-9]+)?(/[0-9]+)?$|^\[?[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(%[^/\]]*)?(\](:[0-9]+)?)?(/[0-9]+)?$`)

// addresses finds exact values of addresses in a form that clients do not send. Exact values are compared as text.
func (c *checker) addresses(nodes []*node) {
	key := nodes[0].key
	if !slices.Contains(addressKeys, key) && !slices.ContainsFunc(nodes,
		func(n *node) bool { return n.kind == descriptor.MatchCIDR }) {
		return
	}
	for _, n := range nodes {
		if n.kind == descriptor.MatchExact {
			c.address(key, n.value, n.valueAt)
		}
		for _, v := range n.values {
			c.address(key, v.text, v.at)
		}
	}
}

func (c *checker) address(key, text string, at yamlform.Position) {
	if !looksLikeAddress.MatchString(text) {
		return
	}
	network, ok := descriptor.ParseNetwork(text)
	switch {
	case !ok:
		c.add(Warning, at, codeNoAddress, "write an address such as 10.0.0.1 or 2001:db8::1",
			"%s is not an address: only a client that sends exactly this text matches this rule", yamlform.Quote(text))
	case key == maskedAddress && network.String() != text:
		c.add(Warning, at, codeNoAddress, "write "+yamlform.Quote(network.String()),
			"%s is compared as text, but Envoy sends addresses under this key with their mask", yamlform.Quote(text))
	case key != maskedAddress && network.IsSingleIP() && network.Addr().String() != text:
		c.add(Warning, at, codeNoAddress, "write `value_cidr: "+network.String()+"`, which matches all notations",
			"%s is compared as text, but clients usually send the address as %s", yamlform.Quote(text), network.Addr())
	}
}

// nested finds networks within others, each with the smallest one around it. Idle networks have a worse finding
// already.
func (c *checker) nested(all []network, idle map[*node]bool) {
	var around []network
	for _, n := range all {
		for len(around) > 0 && !around[len(around)-1].prefix.Contains(n.prefix.Addr()) {
			around = around[:len(around)-1]
		}
		if len(around) > 0 {
			outer := around[len(around)-1].node
			within := fmt.Sprintf("%s lies within %s (%s)", yamlform.Quote(n.node.value), yamlform.Quote(outer.value),
				outer.valueAt.From(n.node.valueAt))
			if !idle[outer] && sameLimit(outer, n.node) {
				c.add(Warning, n.node.valueAt, codeCIDROverlap, "remove it, or give it another limit",
					"%s, which has the same limit", within)
			} else {
				c.add(Info, n.node.valueAt, codeCIDROverlap, "nothing to change if its addresses are an exception",
					"%s: the larger network's limit does not apply to its addresses", within)
			}
		}
		around = append(around, n)
	}
}

// sameLimit reports whether two nodes have the same limits: then one of the two is superfluous.
func sameLimit(a, b *node) bool {
	if len(a.limits) == 0 || a.share || b.share ||
		len(a.children)+len(b.children)+len(a.flags)+len(b.flags)+len(a.replaces)+len(b.replaces) > 0 {
		return false
	}
	return slices.EqualFunc(a.limits, b.limits, func(a, b limit) bool {
		return a.name == "" && b.name == "" && a.Limit != nil && b.Limit != nil && *a.Limit == *b.Limit
	})
}

// covered reports whether smaller networks together are all of p.
func covered(p netip.Prefix, within []network) bool {
	if len(within) == 0 {
		return false
	}
	for _, n := range within {
		if n.prefix.Bits() <= p.Bits() {
			return true
		}
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	var inLow, inHigh []network
	for _, n := range within {
		if low.Contains(n.prefix.Addr()) {
			inLow = append(inLow, n)
		} else {
			inHigh = append(inHigh, n)
		}
	}
	return covered(low, inLow) && covered(upperHalf(p), inHigh)
}

// upperHalf returns the second half of a network.
func upperHalf(p netip.Prefix) netip.Prefix {
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits()+1)
}
