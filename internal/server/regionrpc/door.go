package regionrpc

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// door is a listener that gives connections without a certificate few places of their own, so that they never take those of other regions. If
// these are all in use, the oldest connection of the address with most of them is closed: so a new one has time for its handshake, unless as many
// others from as many addresses arrive meanwhile.
type door struct {
	net.Listener

	mu      sync.Mutex
	waiting []*visitor // whose certificate was not checked yet, the oldest first
	inside  int        // connections with a certificate
}

// visitor is a connection that has come through a door.
type visitor struct {
	net.Conn
	door *door
	from netip.Prefix

	entered, gone bool // under door.mu
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the transport looks at it
	}
	v := &visitor{Conn: c, door: d, from: sourceOf(c.RemoteAddr())}
	d.mu.Lock()
	var out *visitor
	if len(d.waiting) >= maxStrangers {
		out = d.leave(d.crowd())
	}
	d.waiting = append(d.waiting, v)
	d.mu.Unlock()
	if out != nil {
		_ = out.Conn.Close()
	}
	return v, nil
}

// crowd returns the place of the oldest connection of the address that has most of those that wait.
func (d *door) crowd() (oldest int) {
	many, most := make(map[netip.Prefix]int, len(d.waiting)), 0
	for i, v := range slices.Backward(d.waiting) {
		if many[v.from]++; many[v.from] >= most {
			oldest, most = i, many[v.from]
		}
	}
	return oldest
}

// leave removes a connection from those that wait.
func (d *door) leave(i int) *visitor {
	v := d.waiting[i]
	d.waiting = slices.Delete(d.waiting, i, i+1)
	return v
}

// enter is called when the connection has shown a certificate of the authority.
func (v *visitor) enter() error {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	i := slices.Index(v.door.waiting, v)
	switch {
	case i < 0:
		return errors.New("closed to make room for another connection")
	case v.door.inside >= maxConnections:
		return errors.New("too many connections")
	}
	v.door.leave(i)
	v.door.inside++
	v.entered = true
	return nil
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.door.mu.Lock()
	if i := slices.Index(v.door.waiting, v); i >= 0 {
		v.door.leave(i)
	}
	if v.entered && !v.gone {
		v.door.inside--
	}
	v.gone = true
	v.door.mu.Unlock()
	return v.Conn.Close() //nolint:wrapcheck // the transport looks at it
}

// sourceOf is where connections come from that are counted together: an address, or a /64 of IPv6.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	source, _ := ip.Prefix(min(ip.BitLen(), 64))
	return source
}

// SyscallConn implements syscall.Conn, so that the transport writes without waiting.
func (v *visitor) SyscallConn() (syscall.RawConn, error) {
	c, ok := v.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn() //nolint:wrapcheck // the transport looks at it
}
