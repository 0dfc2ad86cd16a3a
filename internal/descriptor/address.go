package descriptor

import (
	"fmt"
	"net/netip"
	"strings"
)

// parseAddress parses an IP address. An IPv4 address mapped into IPv6 becomes the IPv4 address. An address with a zone is
// rejected, because a zone has a meaning on one machine only.
func parseAddress(s string) (netip.Addr, bool) {
	if !likeAddress(s) {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap(), err == nil
}

// likeAddress reports whether a text looks like an address. Callers also send names and numbers under the keys of networks,
// and netip.ParseAddr allocates an error for each text that is not an address.
func likeAddress(s string) bool {
	if len(s) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255") {
		return false
	}
	dots, colons := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			dots++
		case c == ':':
			colons++
		case '0' <= c && c <= '9':
		case c|0x20 < 'a' || c|0x20 > 'f':
			return false
		}
	}
	return colons >= 2 && strings.Count(s, "::") <= 1 || colons == 0 && dots == 3
}

// ParseCIDR parses a network: an address, a slash, and the number of bits in the prefix. An IPv4 network mapped into IPv6
// becomes the IPv4 network. An address with bits set after the prefix is an error, because its meaning is not clear.
func ParseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			return netip.Prefix{}, fmt.Errorf("%q is an address: write %s for the network of only this address", text, netip.PrefixFrom(a, a.BitLen()))
		}
		return netip.Prefix{}, fmt.Errorf("%q is no network: write one like 10.0.0.0/8 or 2001:db8::/32", text)
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its first %d: write %s, or %s for only the address", text, p.Bits(), p.Masked(),
			netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}
