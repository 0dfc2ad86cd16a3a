package address

import (
	"net/netip"
	"strings"
)

// Client returns the address of the client of a request from a peer, "host:port" or an address. lines are the
// X-Forwarded-For headers, in order. Without trusted proxies, or if the peer is not one of them, the client is the
// peer. A peer without an address is a unix socket: a process of this machine, which is trusted if any proxy is.
//
// Addresses are without zones, and IPv4 addresses in IPv6 form are IPv4 addresses, so that a client has one address
// only.
func Client(peer string, lines []string, trusted []netip.Prefix) (netip.Addr, bool) {
	w := walk{trusted: trusted}
	if !w.begin(peer) {
		return w.client, w.client.IsValid()
	}
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; ; {
			comma := strings.LastIndexByte(rest, ',')
			if !w.step(rest[comma+1:]) {
				return w.client, w.client.IsValid()
			}
			if comma < 0 {
				break
			}
			rest = rest[:comma]
		}
	}
	return w.client, w.client.IsValid()
}

// walk follows the list from proxy to proxy.
type walk struct {
	trusted []netip.Prefix
	client  netip.Addr // last address that is known
}

// begin starts at the peer, and reports whether it is a trusted proxy.
func (w *walk) begin(peer string) bool {
	if addr, ok := parse(peer); ok {
		w.client = addr
		return w.trusts(addr)
	}
	return len(w.trusted) > 0 && (peer == "" || peer[0] == '@' || peer[0] == '/')
}

// step goes to the address that a trusted proxy appended, and reports whether that is a trusted proxy too. If the
// element is not an address, the client remains the last trusted proxy.
func (w *walk) step(text string) bool {
	text = strings.Trim(text, " \t")
	if text == "" {
		return true // an empty element of a list does not count: RFC 9110, section 5.6.1
	}
	addr, ok := parse(text)
	if !ok {
		return false
	}
	w.client = addr
	return w.trusts(addr)
}

func (w *walk) trusts(a netip.Addr) bool {
	for _, p := range w.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// parse reads an address with or without port, brackets and zone.
func parse(text string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.WithZone("").Unmap(), true
	}
	if p, err := netip.ParseAddrPort(text); err == nil {
		return p.Addr().WithZone("").Unmap(), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			a, err := netip.ParseAddr(inner)
			return a.WithZone("").Unmap(), err == nil
		}
	}
	return netip.Addr{}, false
}
