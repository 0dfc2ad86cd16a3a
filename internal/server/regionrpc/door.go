package regionrpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// door is a listener that gives each region its own places, so that no region takes those of others.
type door struct {
	net.Listener

	share int // connections that each region may have

	mu     sync.Mutex
	inside map[string]int // connections of each region
}

// visitor is a connection that has come through a door.
type visitor struct {
	net.Conn
	door *door

	region string // that it has entered for, under door.mu
	gone   bool   // under door.mu
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the transport looks at it
	}
	return &visitor{Conn: c, door: d}, nil
}

// count returns how many connections regions have.
func (d *door) count() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, of := range d.inside {
		n += of
	}
	return n
}

// enter is called when the connection has shown the certificate of a region.
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
	return v.Conn.Close() //nolint:wrapcheck // the transport looks at it
}

// SyscallConn implements syscall.Conn, so that the transport writes without waiting.
func (v *visitor) SyscallConn() (syscall.RawConn, error) {
	c, ok := v.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn() //nolint:wrapcheck // the transport looks at it
}
