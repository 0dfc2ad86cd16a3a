package regionrpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// door is a listener with separate places for each region, so that regions do not compete for them.
type door struct {
	net.Listener

	share int // largest number of connections of a region

	mu     sync.Mutex
	inside map[string]int // connections of each region
}

// visitor is a connection accepted by a door.
type visitor struct {
	net.Conn
	door *door

	region string // region that it counts for, guarded by door.mu
	gone   bool   // guarded by door.mu
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the transport checks its type
	}
	return &visitor{Conn: c, door: d}, nil
}

// count returns the number of connections of regions.
func (d *door) count() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range d.inside {
		n += of
	}
	return n
}

// enter counts the connection for a region, after its certificate was checked.
func (v *visitor) enter(region string) error {
	v.door.mu.Lock()
	defer v.door.mu.Unlock()
	switch {
	case v.gone:
		return errors.New("closed")
	case v.door.inside[region] >= v.door.share:
		return fmt.Errorf("region %s has %d connections: these are the most", region, v.door.share)
	}
	if v.door.inside == nil {
		v.door.inside = make(map[string]int)
	}
	v.door.inside[region]++
	v.region = region
	return nil
}

// Close implements net.Conn.
func (v *visitor) Close() error {
	v.door.mu.Lock()
	if v.region != "" && !v.gone {
		v.door.inside[v.region]--
	}
	v.gone = true
	v.door.mu.Unlock()
	return v.Conn.Close() //nolint:wrapcheck // the transport checks its type
}

// SyscallConn implements syscall.Conn, so that the transport writes without waiting.
func (v *visitor) SyscallConn() (syscall.RawConn, error) {
	c, ok := v.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn() //nolint:wrapcheck // the transport checks its type
}
