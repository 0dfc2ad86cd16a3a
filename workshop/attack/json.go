package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// post is a request to /json with a body of size bytes whose first bytes are text.
func post(size int, text string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b,
		"POST /json HTTP/1.1\r\nHost: attack\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", size, text)
	return b.Bytes()
}

// jsonFlood sends small, large and endless bodies to /json at the same time.
func jsonFlood(ctx context.Context, at string, short bool) error {
	const small = `{"domain":"attack","descriptors":[{"entries":[{"key":"key","value":"one"}]}]}`
	batch := bytes.Repeat(post(len(small), small), 100)

	// The most entries and the largest body that a request may have: the most work before the server rejects it.
	entries := strings.Repeat(`{},`, 255) + `{}`
	descriptors := strings.Repeat(`{"entries":[`+entries+`]},`, 255) + `{"entries":[` + entries + `]}`
	large := `{"domain":"attack","descriptors":[` + descriptors + `]}`
	large += strings.Repeat(" ", 4<<20-len(large))

	const endless = 60_000
	var all sync.WaitGroup
	connections := func(n int, attack func(net.Conn) error) {
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					if conn, err := connect(ctx, at, true); err == nil {
						go func() { _, _ = io.Copy(io.Discard, conn) }()
						for err == nil && ctx.Err() == nil {
							err = attack(conn)
						}
						_ = conn.Close()
					}
					wait(ctx, 100*time.Millisecond)
				}
			})
		}
	}
	connections(8, func(c net.Conn) error { return write(c, batch) })
	connections(16, func(c net.Conn) error { return write(c, post(len(large), large)) })
	connections(few(short, 500, 2_000), func(c net.Conn) error {
		if err := write(c, post(endless, strings.Repeat(" ", endless-1_000))); err != nil {
			return err
		}
		for {
			wait(ctx, time.Second)
			if err := write(c, []byte{' '}); err != nil {
				return err
			}
		}
	})
	all.Wait()
	return nil
}

func write(c net.Conn, b []byte) error {
	_, err := c.Write(b)
	return err
}

// idleHTTP opens connections, sends one request on each, and keeps them open.
func idleHTTP(ctx context.Context, at string, short bool) error {
	var all sync.WaitGroup
	defer all.Wait()
	for range few(short, 1_000, 10_000) {
		all.Go(func() {
			for ctx.Err() == nil {
				if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at); err == nil {
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: ratelimitd\r\n\r\n")
					_, _ = io.Copy(io.Discard, conn)
					stop()
					_ = conn.Close()
				}
				wait(ctx, time.Second)
			}
		})
	}
	return nil
}
