package operator

import (
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// A peer calls each method of the operators' port with a thousand streams on each of several connections, does not open
// a window for the answers and does not read them. The memory kept for the peer has a bound, and other operators are
// answered.
func TestHostilePeers(t *testing.T) {
	const connections, streams = 3, 1000
	const most = 64 << 20 // heap size in bytes, including the test's own connections
	r := explaining(t)
	for _, name := range serviceNames {
		for _, path := range pathsOf(t, name) {
			t.Run(path, func(t *testing.T) {
				before := liveHeap()
				for range connections {
					conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.DebugAddr.String())
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = conn.Close() }()
					flood(conn, path, streams)
				}
				if code, _, body := post(t, r, explainPath, "application/json", `{"domain": "d", "entries": [{"key": "k", "value": "v"}]}`, nil); code != http.StatusOK {
					t.Errorf("another operator: %d %s", code, body)
				}
				if grown := liveHeap() - before; grown > most {
					t.Errorf("the heap has %d MB more", grown>>20)
				}
			})
		}
	}
}

// pathsOf are the paths of the methods of a service.
func pathsOf(t *testing.T, service string) (paths []string) {
	t.Helper()
	if strings.HasPrefix(service, "grpc.reflection.") { // the library for it registers no description
		return []string{"/" + service + "/ServerReflectionInfo"}
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		t.Fatal(service, err)
	}
	methods := found.(protoreflect.ServiceDescriptor).Methods()
	for i := range methods.Len() {
		paths = append(paths, "/"+service+"/"+string(methods.Get(i).Name()))
	}
	return paths
}

// flood opens streams with an empty message, until the server takes no more or nothing for a while.
func flood(conn net.Conn, path string, streams int) {
	_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
	c := http2test.New(conn, conn)
	if c.Greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) != nil {
		return
	}
	fields := http2test.Fields(path, ":authority", conn.RemoteAddr().String())
	for range streams {
		if c.Begin(c.Encode(fields...)) != nil || c.WriteData(c.Stream, false, http2test.Message(0, nil)) != nil {
			return
		}
	}
}

func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
