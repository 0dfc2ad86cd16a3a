package intake

import (
	"container/list"
	"net"
	"net/netip"
	"sync/atomic"
)

// peer is what connections come from that share their bounds: an IPv4 address, a /64 of IPv6, or all that use a socket of
// this machine. A proxy, or a network behind one address, is one peer.
type peer struct {
	key   string
	open  list.List // of *Conn, under the listener's mutex
	calls atomic.Int64
}

// peerOf names the peer of an address.
func peerOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return a.Network()
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.Is4() {
		return ip.String()
	}
	network := netip.PrefixFrom(ip.WithZone(""), 64).Masked()
	return network.String()
}
