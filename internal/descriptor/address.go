package descriptor

import (
	"fmt"
	"net/netip"
	"strings"
)

// address is an IP address as a number: of IPv4 the 32 bits in low, of IPv6 all.
type address struct {
	high, low uint64
}

// parseAddress reads an IP address, and says whether it is one of IPv4. An IPv4 address mapped into IPv6 is the IPv4
// address. One with a zone is none here: zones mean something on one machine only.
//
// It takes what netip.ParseAddr takes, zones apart. That allocates an error for every value that is no address, and
// those come from callers.
func parseAddress(s string) (a address, four, ok bool) {
	if strings.IndexByte(s, ':') < 0 {
		n, ok := parseFour(s)
		return address{low: uint64(n)}, true, ok
	}
	if a, ok = parseSix(s); !ok {
		return address{}, false, false
	}
	if a.high == 0 && a.low>>32 == 0xffff {
		return address{low: a.low & 0xffffffff}, true, true
	}
	return a, false, true
}

// parseFour reads four decimals from 0 to 255 with dots between them, without leading zeros.
func parseFour(s string) (n uint32, ok bool) {
	if len(s) < len("0.0.0.0") || len(s) > len("255.255.255.255") {
		return 0, false
	}
	field, digits, dots := uint32(0), 0, 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
			if digits == 1 && field == 0 {
				return 0, false
			}
			field = field*10 + uint32(c-'0')
			if digits++; field > 255 {
				return 0, false
			}
		case c == '.':
			if digits == 0 || dots == 3 {
				return 0, false
			}
			n, field, digits = n<<8|field, 0, 0
			dots++
		default:
			return 0, false
		}
	}
	return n<<8 | field, digits > 0 && dots == 3
}

// parseSix reads eight groups of up to four hexadecimal digits with colons between them. A double colon stands for at
// least one group of zeros, and the last two groups may be written as an IPv4 address.
func parseSix(s string) (a address, ok bool) {
	if len(s) < len("::") || len(s) > len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255") {
		return a, false
	}
	var groups [8]uint16
	n, gap := 0, -1 // groups read, and how many of them came before the double colon
	if strings.HasPrefix(s, "::") {
		gap, s = 0, s[2:]
	}
	for s != "" {
		if n == len(groups) {
			return a, false
		}
		value, digits := uint32(0), 0
		for digits < len(s) {
			d := hexDigit(s[digits])
			if d > 15 {
				break
			}
			value = value<<4 | uint32(d)
			if digits++; digits > 4 {
				return a, false
			}
		}
		if digits == 0 {
			return a, false
		}
		if digits < len(s) && s[digits] == '.' {
			four, ok := parseFour(s)
			if !ok || n > 6 {
				return a, false
			}
			groups[n], groups[n+1] = uint16(four>>16), uint16(four)
			n += 2
			break
		}
		groups[n] = uint16(value)
		n++
		if s = s[digits:]; s == "" {
			break
		}
		if s[0] != ':' || len(s) == 1 {
			return a, false
		}
		if s = s[1:]; s[0] == ':' {
			if gap >= 0 {
				return a, false
			}
			gap, s = n, s[1:]
		}
	}
	if gap >= 0 {
		if n == len(groups) {
			return a, false
		}
		moved := n - gap
		for i := range moved {
			groups[7-i], groups[n-1-i] = groups[n-1-i], 0
		}
	} else if n < len(groups) {
		return a, false
	}
	for i := range 4 {
		a.high = a.high<<16 | uint64(groups[i])
		a.low = a.low<<16 | uint64(groups[4+i])
	}
	return a, true
}

// hexDigit is the value of a hexadecimal digit, more than 15 for other bytes.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// ParseCIDR reads a network: an address, a slash, and how many of its bits belong to the network. An IPv4 network
// mapped into IPv6 is the IPv4 network. A network written with bits beyond those is refused: it is not clear what was
// meant.
func ParseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			return netip.Prefix{}, fmt.Errorf("%q is an address: write %s for the network of it alone", text, netip.PrefixFrom(a, a.BitLen()))
		}
		return netip.Prefix{}, fmt.Errorf("%q is no network: write one like 10.0.0.0/8 or 2001:db8::/32", text)
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its first %d: write %s, or %s for the address alone", text, p.Bits(), p.Masked(),
			netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}
