package redisconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// scanned scans a stream in reads of some length.
func scanned(stream string, step int) error {
	r := new(replies)
	for len(stream) > 0 {
		n := min(step, len(stream))
		if err := r.scan([]byte(stream[:n])); err != nil {
			return err
		}
		stream = stream[n:]
	}
	return nil
}

// Valid answers pass, and the next answer is found behind them: a length that is too large is rejected there, however
// the bytes arrive.
func TestRepliesPass(t *testing.T) {
	for _, stream := range []string{
		"+OK\r\n", "-ERR it failed\r\n", ":-9223372036854775808\r\n", "_\r\n", ",inf\r\n", "#t\r\n", "(3492890328409238509324850943850943825024385\r\n",
		"$0\r\n\r\n", "$5\r\nhello\r\n", "$13\r\n$2000000000\r\n\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "!5\r\nERR x\r\n", "=7\r\ntxt:abc\r\n",
		"*2\r\n*1\r\n*0\r\n*-1\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n$1\r\n\n\r\n", "~1\r\n_\r\n", ">3\r\n+message\r\n+channel\r\n$3\r\n*9\n\r\n",
		"|1\r\n+ttl\r\n:3600\r\n*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n", "%0\r\n", "|0\r\n:1\r\n", "*1\r\n$00000003\r\nabc\r\n",
		"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "\n\n\r\n", "\x15\x03\x01\x00\n",
		"$" + fmt.Sprint(maxText) + "\r\n" + strings.Repeat("*", maxText) + "\r\n",
		"*" + fmt.Sprint(maxElements) + "\r\n" + strings.Repeat(":1\r\n", maxElements),
		strings.Repeat("*1\r\n", maxDepth) + ":1\r\n", "-" + strings.Repeat("x", maxLine-3) + "\r\n",
	} {
		for _, step := range []int{1, 2, 3, 7, 4096, len(stream)} {
			if len(stream) > 1<<20 && step < 4096 {
				continue
			}
			if err := scanned(stream, step); err != nil {
				t.Errorf("%.40q in reads of %d bytes: %v", stream, step, err)
			}
			for _, next := range []string{"$2000000000\r\n", "*2000000000\r\n"} {
				if err := scanned(stream+next, step); !errors.As(err, new(tooLarge)) {
					t.Errorf("%.40q and then %q in reads of %d bytes: %v", stream, next, step, err)
				}
			}
		}
	}
}

func TestRepliesRejected(t *testing.T) {
	for stream, want := range map[string]string{
		"$16777217\r\n":                             "a text of 16777217 bytes; at most 16777216",
		"=16777217\r\n":                             "a text of 16777217 bytes; at most 16777216",
		"!65537\r\n":                                "a text of 65537 bytes; at most 65536",
		"*1048577\r\n":                              "1048577 elements; at most 1048576",
		"~1048577\r\n":                              "1048577 elements; at most 1048576",
		">18446744073709551615\r\n":                 "18446744073709551615 elements; at most 1048576",
		"%524289\r\n":                               "more than 1048576 elements",
		"%9223372036854775809\r\n":                  "elements; at most 1048576",
		"|1048577\r\n":                              "1048577 elements; at most 1048576",
		"*3\r\n*1048570\r\n":                        "", // two more fit
		"*3\r\n*1048570\r\n*4\r\n":                  "more than 1048576 elements",
		"+" + strings.Repeat("x", maxLine):          "a line of more than 64 KiB",
		"-" + strings.Repeat("x", maxLine) + "\r\n": "a line of more than 64 KiB",
		":" + strings.Repeat("1", maxLine):          "a line of more than 64 KiB",
		"(" + strings.Repeat("1", maxLine):          "a line of more than 64 KiB",
		"$" + strings.Repeat("1", maxLine):          "a line of more than 64 KiB",
		strings.Repeat("x", maxLine+1):              "a line of more than 64 KiB",
		strings.Repeat("*1\r\n", maxDepth+1):        "arrays within arrays, more than 16 deep",
		strings.Repeat("*1\r\n|1\r\n", maxDepth):    "arrays within arrays, more than 16 deep",
		strings.Repeat("%1\r\n+k\r\n", maxDepth+1):  "arrays within arrays, more than 16 deep",
		strings.Repeat("$8388608\r\n"+strings.Repeat("x", 8<<20)+"\r\n", 4): "more than 32 MiB in answer to one command",
		"$+5\r\nhello\r\n":                      `"$+5\r\n" where a length belongs`,
		"$-5\r\n":                               `"$-5\r\n" where a length belongs`,
		"$-0\r\n":                               `"$-0\r\n" where a length belongs`,
		"$\r\n":                                 `"$\r\n" where a length belongs`,
		"$5\n":                                  `"$5\n" where a length belongs`,
		"$?\r\n":                                `"$?\r\n" where a length belongs`,
		"*1e9\r\n":                              `"*1e9\r\n" where a length belongs`,
		"$99999999999999999999999999999999\r\n": "where a length belongs",
	} {
		for _, step := range []int{1, 5, len(stream)} {
			if len(stream) > 1<<20 {
				step = 4096
			}
			switch err := scanned(stream, step); {
			case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%.40q in reads of %d bytes: %v", stream, step, err)
			}
		}
	}
}

// A connection that serves for a long time may receive any number of bytes and elements, in answer to many commands.
func TestRepliesOfManyCommands(t *testing.T) {
	r := new(replies)
	for range 100 {
		r.asked.Store(true)
		if err := r.scan([]byte("*500000\r\n" + strings.Repeat(":1\r\n", 500_000))); err != nil {
			t.Fatal(err)
		}
	}
}

// However a stream is cut into reads, it is rejected for the same reason or passes, with the same state after it.
func FuzzReplies(f *testing.F) {
	for _, stream := range []string{"+OK\r\n$5\r\nhello\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "|1\r\n+a\r\n+b\r\n%1\r\n+k\r\n_\r\n", "$2000000000\r\n", "-ERR\r\n*-1\r\n"} {
		f.Add([]byte(stream), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		whole, pieces := new(replies), new(replies)
		want := whole.scan(stream)
		var err error
		for rest := stream; len(rest) > 0 && err == nil; {
			n := min(int(step)+1, len(rest))
			err = pieces.scan(rest[:n])
			rest = rest[n:]
		}
		if fmt.Sprint(err) != fmt.Sprint(want) {
			t.Fatalf("in one read: %v; in reads of %d bytes: %v", want, int(step)+1, err)
		}
		if err == nil && (whole.depth != pieces.depth || whole.left != pieces.left || whole.skip != pieces.skip || whole.line != pieces.line) {
			t.Fatalf("%+v and %+v", whole, pieces)
		}
	})
}

// stream is a connection that a server has sent some bytes to.
type stream struct {
	net.Conn
	bytes   []byte
	step    int // most bytes of a read
	largest int // the reader's largest buffer
	got     []byte
}

func (s *stream) Read(p []byte) (int, error) {
	s.largest = max(s.largest, len(p))
	if len(s.bytes) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.step)], s.bytes)
	s.bytes = s.bytes[n:]
	s.got = append(s.got, p[:n]...)
	return n, nil
}
func (s *stream) Write(p []byte) (int, error)      { return len(p), nil }
func (s *stream) Close() error                     { return nil }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
func (s *stream) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *stream) LocalAddr() net.Addr              { return &net.TCPAddr{} }

// The client library never makes room for a text that replies did not see, regardless of the bytes before it: both
// start their elements at the same bytes. The bytes that pass are exactly those that were sent.
func FuzzRepliesOfClient(f *testing.F) {
	const large = "$2000000000\r\n"
	for _, sent := range []string{
		large, "+OK\r\n" + large, "*2\r\n-ERR\r\n" + large, "*3\r\n-ERR x\r\n$13\r\n" + large + "\r\n:1\r\n" + large, "%1\r\n-ERR\r\n$13\r\n" + large + "\r\n" + large,
		"|1\r\n+a\r\n+b\r\n" + large, "\r\n" + large, "x\r\n" + large, "$-1\r\n" + large, "$5\r\nhelloxx" + large, "*1\r\n$1\r\n\n\r\n" + large, "_\r\n" + large,
		"!5\r\nERR x\r\n" + large, "=5\r\ntxt:x\r\n" + large, "=3\r\nabc\r\n" + large, "(12x\r\n" + large, "#x\r\n" + large, ",x\r\n" + large, ">1\r\n+x\r\n" + large, "~1\r\n*0\r\n" + large,
		"+OK\n" + large, ":1\r\r\n" + large, "%1\r\n*1\r\n:1\r\n" + large,
	} {
		f.Add([]byte(sent), uint8(0))
		f.Add([]byte(sent), uint8(255))
	}
	f.Fuzz(func(t *testing.T, sent []byte, step uint8) {
		s := &stream{bytes: bytes.Clone(sent), step: int(step) + 1}
		read := new(recorded)
		client := goredis.NewClient(&goredis.Options{
			Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, MaintNotificationsConfig: noMaintenance(), PipelinePoolSize: -1,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				read.Conn = &conn{Conn: s, dialer: new(dialer), onClose: func() {}}
				return read, nil
			},
		})
		defer func() { _ = client.Close() }()
		client.AddHook(hook{login: &login{auth: new(credentials)}})
		for dialled := false; !dialled || len(s.bytes) > 0; dialled = true {
			err := client.Do(t.Context(), "get", "k").Err()
			if err != nil && !errors.Is(err, goredis.Nil) && !errors.As(err, new(goredis.Error)) {
				break // the library has closed the connection
			}
		}
		_ = client.HGetAll(t.Context(), "k").Err()
		if s.largest > maxText+len("\r\n") {
			t.Errorf("the library made room for %d bytes", s.largest)
		}
		if !bytes.HasPrefix(sent, read.got) {
			t.Errorf("the library was given %q", read.got)
		}
	})
}

// recorded is a connection that records the bytes read from it.
type recorded struct {
	net.Conn
	got []byte
}

func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.got = append(r.got, p[:n]...)
	return n, err
}

// The cost of following a usual answer of a take.
func BenchmarkReplies(b *testing.B) {
	answer := []byte("$58\r\n" + strings.Repeat("x", 58) + "\r\n")
	r := new(replies)
	for b.Loop() {
		r.asked.Store(true)
		if err := r.scan(answer); err != nil {
			b.Fatal(err)
		}
	}
}
