package intake

import (
	"container/list"
	"net"
	"net/netip"
	"sync/atomic"
)

// peer is the source of connections that share bounds: an IPv4 address, a /64 of IPv6, or all clients of a unix socket.
// A proxy, or a network behind one address, is a single peer.
type peer struct {
	key     string
	open    list.List // *Conn, guarded by the listener's mutex
	calls   atomic.Int64
	streams atomic.Int64 // streams of Streams

	handshakes peerHandshakes
}

// PeerOf returns the key of an address's peer.
func PeerOf(a net.Addr) string {
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
