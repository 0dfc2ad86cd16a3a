package operator

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A peer calls each method of the operators' port with a thousand streams on each of several connections, does not open a window for the
// answers and does not read them. What the process keeps for the peer has a bound, and other operators are answered.
func TestHostilePeers(t *testing.T) {
	const connections, streams = 3, 1000
	const most = 64 << 20 // of the heap; the test's own connections are in it
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
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	if framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) != nil {
		return
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	message := binary.BigEndian.AppendUint32([]byte{0}, 0)
	for i := range streams {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", conn.RemoteAddr().String()}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		id := uint32(2*i + 1)
		if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}) != nil {
			return
		}
		if framer.WriteData(id, false, message) != nil {
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
