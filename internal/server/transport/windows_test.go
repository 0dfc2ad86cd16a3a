package transport

import (
	"testing"

	"golang.org/x/net/http2"
)

// A stream that waits for a window continues when the window opens, whichever frame opens it, and whichever of the two
// windows was closed.
func TestStreamsContinueWhenWindowsOpen(t *testing.T) {
	const size = 200_000
	addr, _ := start(t, echo{}, streams(func(s *Stream) error { return s.Send(make([]byte, size-prefixSize)) }))
	for name, open := range map[string]func(c *rawClient, ids []uint32){
		"connection": func(c *rawClient, _ []uint32) {
			c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size}))
			for range 3 * size / 10_000 {
				c.roundTrip()
				c.ok(c.fr.WriteWindowUpdate(0, 10_000))
			}
		},
		"streams": func(c *rawClient, ids []uint32) {
			c.ok(c.fr.WriteWindowUpdate(0, 3*size))
			for range size / 10_000 {
				for _, id := range ids {
					c.ok(c.fr.WriteWindowUpdate(id, 10_000))
				}
				c.roundTrip()
			}
		},
		"settings": func(c *rawClient, _ []uint32) {
			c.ok(c.fr.WriteWindowUpdate(0, 3*size))
			for n := range uint32(size / 10_000) {
				c.roundTrip()
				c.ok(c.fr.WriteSettings(
					http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0},
					http2.Setting{ID: http2.SettingInitialWindowSize, Val: (n + 1) * 10_000},
				))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			var ids []uint32
			for range 3 {
				ids = append(ids, c.open(true, ":path", otherPath))
			}
			c.roundTrip()
			open(c, ids)
			for _, id := range ids {
				if a := c.wait(id); len(a.data) != size {
					t.Errorf("stream %d: %d bytes, %v", id, len(a.data), a)
				}
			}
		})
	}
}
