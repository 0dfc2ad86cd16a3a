package transport

import (
	"testing"
	"time"
)

// pathEcho answers with the path of the method that was called.
type pathEcho struct{}

type text string

func (t text) AppendTo(b []byte) []byte { return append(b, t...) }

func (pathEcho) Handle(_ time.Time, calls []*Call) {
	for _, c := range calls {
		c.Reply(text(c.Path()))
	}
}

// A handler of several methods receives the calls of each, and can tell which was called. A path that only starts like
// one of them is not its method.
func TestSeveralMethods(t *testing.T) {
	addr, _ := start(t, pathEcho{}, func(o *Options) { o.More = []string{"/test.Other/First", "/test.Other/Second"} })
	c := rawDial(t, addr)
	for _, path := range []string{echoPath, "/test.Other/First", "/test.Other/Second", "/test.Other/First"} {
		a := c.wait(c.begin(nil, ":path", path))
		if got := string(a.data); a.field("grpc-status") != "0" || len(got) < 5 || got[5:] != path {
			t.Errorf("%s: %v", path, a)
		}
	}
	for _, path := range []string{"/test.Other/First/", "/test.Other/", "/test.Other/Third"} {
		if a := c.wait(c.begin(nil, ":path", path)); a.field("grpc-status") != "12" {
			t.Errorf("%s: %v", path, a)
		}
	}
}
