package address

import (
	"net/netip"
	"strings"
)

// Client returns the address of the client of a request from a peer, "host:port" or an address. The lines are those of
// X-Forwarded-For, in order. Without trusted proxies, or if the peer is none of them, the client is the peer. A peer without an
// address is a unix socket: a process of this machine, which is trusted if any proxy is.
//
// Addresses are without zones, and IPv4 addresses in IPv6 form are IPv4 addresses, so that a client has one address only.
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

// Forwarded is Client for the lines of the header Forwarded (RFC 7239).
func Forwarded(peer string, lines []string, trusted []netip.Prefix) (netip.Addr, bool) {
	w := walk{trusted: trusted}
	if !w.begin(peer) {
		return w.client, w.client.IsValid()
	}
	for i := len(lines) - 1; i >= 0; i-- {
		nodes, ok := forwardedFor(lines[i])
		if !ok {
			break // a client may have begun a line so that what a proxy appended cannot be told from it
		}
		for j := len(nodes) - 1; j >= 0; j-- {
			if !w.step(nodes[j]) {
				return w.client, w.client.IsValid()
			}
		}
	}
	return w.client, w.client.IsValid()
}

// walk goes from proxy to proxy.
type walk struct {
	trusted []netip.Prefix
	client  netip.Addr // the last one that is known
}

// begin reports whether the peer is a trusted proxy.
func (w *walk) begin(peer string) bool {
	if addr, ok := parse(peer); ok {
		w.client = addr
		return w.trusts(addr)
	}
	return len(w.trusted) > 0 && (peer == "" || peer[0] == '@' || peer[0] == '/')
}

// step goes to the address that a trusted proxy appended, and reports whether that is a trusted proxy too. What is no address says
// nothing, so the client is then the last trusted proxy.
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

// forwardedFor returns the nodes of the parameters "for" of a line, one for each element: "" for an element without.
func forwardedFor(line string) (nodes []string, ok bool) {
	for {
		var node string
		if node, line, ok = element(line); !ok {
			return nil, false
		}
		nodes = append(nodes, node)
		if line == "" {
			return nodes, true
		}
		line = line[1:] // the comma
	}
}

// element reads pairs of token and value up to a comma, which is where rest begins. An element without "for" has the node
// "unknown".
func element(line string) (node, rest string, ok bool) {
	node = "unknown"
	pairs := 0
	for {
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == ',' {
			if pairs == 0 {
				node = ""
			}
			return node, line, true
		}
		if line[0] == ';' {
			line = line[1:]
			continue
		}
		end := strings.IndexAny(line, "=,;\"")
		if end < 0 || line[end] != '=' {
			return "", "", false
		}
		name := line[:end]
		var value string
		if value, line, ok = valueOf(line[end+1:]); !ok {
			return "", "", false
		}
		pairs++
		if strings.EqualFold(name, "for") {
			node = value
		}
		if line = strings.TrimLeft(line, " \t"); line != "" && line[0] != ',' && line[0] != ';' {
			return "", "", false
		}
	}
}

// valueOf reads a token or a quoted string.
func valueOf(line string) (value, rest string, ok bool) {
	if line == "" || line[0] != '"' {
		end := strings.IndexAny(line, ",;\" \t")
		if end < 0 {
			end = len(line)
		}
		return line[:end], line[end:], true
	}
	var b strings.Builder
	for i := 1; i < len(line); i++ {
		switch line[i] {
		case '"':
			return b.String(), line[i+1:], true
		case '\\':
			if i++; i == len(line) {
				return "", "", false
			}
		}
		b.WriteByte(line[i])
	}
	return "", "", false
}
