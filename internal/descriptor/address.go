package descriptor

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseNetwork parses a network as clients send it: an address, which is the network of only this address, or an
// address with the number of bits in the prefix (10.1.2.0/24), as Envoy's masked_remote_address sends. An IPv4 address
// mapped into IPv6 becomes the IPv4 address. Parts that do not belong to the address are left out: a port after an IPv4
// address or a bracketed IPv6 address, the brackets, a zone, which has a meaning on one machine only, and bits after
// the prefix.
func ParseNetwork(s string) (netip.Prefix, bool) {
	bits, six := -1, false
	if at := strings.LastIndexByte(s, '/'); at >= 0 {
		if bits = digits(s[at+1:], 128); bits < 0 || s[at+1] == '0' && at+2 < len(s) {
			return netip.Prefix{}, false
		}
		s = s[:at]
	} else {
		var ok bool
		if s, six, ok = cutPort(s); !ok {
			return netip.Prefix{}, false
		}
	}
	if zone := strings.IndexByte(s, '%'); zone >= 0 {
		if zone == len(s)-1 {
			return netip.Prefix{}, false
		}
		s, six = s[:zone], true
	}
	if !likeAddress(s) {
		return netip.Prefix{}, false
	}
	a, err := netip.ParseAddr(s)
	if err != nil || six && a.Is4() {
		return netip.Prefix{}, false
	}
	if bits < 0 {
		bits = a.BitLen()
	}
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	p := netip.PrefixFrom(a, bits)
	return p.Masked(), p.IsValid()
}

// cutPort cuts off a port after an IPv4 address, and the brackets of an IPv6 address with everything behind them. It
// returns false for a text that is not an address. If bracketed is true, the address must be an IPv6 address.
func cutPort(s string) (address string, bracketed, ok bool) {
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || end < len(s)-1 && (s[end+1] != ':' || digits(s[end+2:], 65535) < 0) {
			return "", false, false
		}
		return s[1:end], true, true
	}
	colon := strings.IndexByte(s, ':')
	if colon < 0 || strings.IndexByte(s[colon+1:], ':') >= 0 {
		return s, false, true
	}
	return s[:colon], false, digits(s[colon+1:], 65535) >= 0
}

// digits returns the number in a text of at most five digits. It returns -1 for other texts, and for numbers above
// most.
func digits(s string, most int) int {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return -1
		}
		n = 10*n + int(s[i]-'0')
		if i == 5 || n > most {
			return -1
		}
	}
	if s == "" {
		return -1
	}
	return n
}

// likeAddress reports whether a text looks like an address. Clients also send names and numbers under the keys of
// networks, and netip.ParseAddr allocates an error for each text that is not an address.
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

// noAddress returns an error text for a text that is not an address. If the text looks like an address, it shows how to
// write one.
func noAddress(text string) string {
	said := fmt.Sprintf("%q is no address", text)
	switch {
	case !strings.ContainsAny(text, "0123456789:") || strings.Trim(text, "0123456789abcdefABCDEF.:[]/%") != "":
		return said
	case strings.Contains(text, ":"):
		return said + ": write one like 10.0.0.1, 10.0.0.1:443, 2001:db8::1 or [2001:db8::1]:443"
	default:
		return said + ": an IPv4 address has four decimal numbers without zeros before them, such as 10.0.0.1"
	}
}

// ParseCIDR parses a network: an address, a slash, and the number of bits in the prefix. An IPv4 network mapped into
// IPv6 becomes the IPv4 network. An address with bits set after the prefix is an error, because its meaning is not
// clear.
func ParseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			return netip.Prefix{}, fmt.Errorf("%q is an address: write %s for the network of only this address", text,
				netip.PrefixFrom(a, a.BitLen()))
		}
		return netip.Prefix{}, fmt.Errorf("%q is no network: write one like 10.0.0.0/8 or 2001:db8::/32", text)
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its first %d: write %s, or %s for only the address", text,
			p.Bits(), p.Masked(),
			netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}
