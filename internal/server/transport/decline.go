package transport

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// notGRPC is the answer to a request that is not a gRPC call.
const notGRPC = "this port answers gRPC calls\n"

// maxEchoed is how many bytes of a client's request an error repeats.
const maxEchoed = 256

// declination is a request that is not a gRPC call. It is answered after all of it has arrived, so that protocol errors
// in it are found first. Its content is dropped.
type declination struct {
	status int
	head   bool // HEAD request: the answer has no body
}

// declinedSize is the memory of such a request, in bytes.
const declinedSize = 512

// decline answers a request that is not a valid call of a known method.
func (c *reader) decline(id uint32, h *head, ended bool) error {
	if code, message := c.headers.objection(); code != codes.OK {
		return c.reject(id, ended, code, message, "")
	}
	d := &declination{status: 405, head: string(c.headers.value(methodField)) == "HEAD"}
	if c.headers.post {
		d.status = 415
	}
	st := &stream{conn: c.conn, id: id, declared: h.declared, ended: ended, declined: d}
	c.add(st, declinedSize)
	if ended {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answerDeclined(st)
	}
	return nil
}

// answerDeclined answers a request that is not a call. The lock must be held.
func (c *conn) answerDeclined(st *stream) {
	if st.gone {
		return
	}
	c.open--
	c.hold(st, -st.held)
	block := appendField(nil, ":status", strconv.Itoa(st.declined.status))
	c.appendBlock(st.id, st.declined.head, appendField(block, "content-type", "text/plain; charset=utf-8"))
	if st.declined.head {
		c.answered(st)
		return
	}
	c.send(st, []byte(notGRPC))
}

// reject answers a call without a message.
func (c *conn) reject(id uint32, ended bool, code codes.Code, message, acceptEncoding string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.progress = true
	c.closed(id, ended)
	c.appendStatus(id, false, code, message, acceptEncoding)
	if !ended {
		c.out = appendReset(c.out, id, 0)
	}
	return nil
}

// objection returns the error of an invalid call. The code is OK if the request is not a call.
func (r *headerReader) objection() (code codes.Code, message string) {
	switch {
	case !r.grpc:
		return codes.OK, ""
	case r.hosts > 1:
		return codes.Internal, fmt.Sprintf("num values of host: %d, it must only have 1 value as per HTTP/2 spec", r.hosts)
	case r.hosts == 0 && r.pseudo&(1<<authorityField) == 0:
		return codes.Internal, "no host or :authority header present"
	case !r.post:
		return codes.Internal, fmt.Sprintf("Received a HEADERS frame with :method %q which should be POST",
			shorten(r.value(methodField)))
	case r.timed && r.timeout < 0:
		return codes.Internal, "malformed grpc-timeout"
	case r.invalid:
		return codes.Internal, "malformed binary metadata"
	}
	path := shorten(r.value(pathField))
	rest, ok := strings.CutPrefix(path, "/")
	service, method, named := cutLast(rest)
	switch {
	case !ok || !named:
		return codes.Unimplemented, fmt.Sprintf("malformed method name: %q", path)
	case r.services[service]:
		return codes.Unimplemented, fmt.Sprintf("unknown method %s for service %s", method, service)
	}
	return codes.Unimplemented, fmt.Sprintf("unknown service %s", service)
}

func shorten(s []byte) string { return string(s[:min(len(s), maxEchoed)]) }

// cutLast splits the path of a method into the names of service and method.
func cutLast(path string) (service, method string, ok bool) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:], true
	}
	return "", "", false
}
