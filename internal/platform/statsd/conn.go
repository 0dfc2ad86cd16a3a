package statsd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	dialTimeout  = 2 * time.Second
	writeTimeout = 2 * time.Second
)

// conn is a connection that is opened when it is needed, and again after it broke. The client writes lines of DogStatsD
// to it. conn converts them to plain StatsD, and adds sample rates, which the client cannot write.
type conn struct {
	network, address string
	plain            bool // plain StatsD: lines have only a name, a value and a type

	mu   sync.Mutex
	c    net.Conn
	rate float64 // sample rate to add to the lines; 0 adds none
	text []byte  // buffer
}

// renew is called before every flush. Over UDP it resolves the name again, because nothing reports that the listener
// has moved. Over TCP it checks whether the listener has closed the connection since the last flush: the first write
// would not notice.
func (c *conn) renew() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c != nil && (c.network == "udp" || hungUp(c.c)) {
		c.hangUp()
	}
	return c.connect()
}

func hungUp(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	var b [64]byte
	for {
		if _, err := c.Read(b[:]); err != nil { // answers of the listener are ignored
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

func (c *conn) connect() (err error) {
	if c.c == nil {
		c.c, err = net.DialTimeout(c.network, c.address, dialTimeout)
	}
	if err != nil {
		return fmt.Errorf("connect to StatsD: %w", err)
	}
	return nil
}

func (c *conn) hangUp() {
	_ = c.c.Close()
	c.c = nil
}

// sample sets the sample rate of the following lines; 1 means none.
func (c *conn) sample(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = rate
}

// Write sends whole lines.
func (c *conn) Write(lines []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.connect(); err != nil {
		return 0, err
	}
	c.text = c.adapt(c.text[:0], lines)
	_ = c.c.SetWriteDeadline(time.Now().Add(writeTimeout))
	if n, err := c.c.Write(c.text); err != nil {
		c.hangUp()
		return min(n, len(lines)), fmt.Errorf("send to StatsD: %w", err)
	}
	return len(lines), nil
}

// adapt appends lines in the form to send. Each arrives as "name:value|type", with DogStatsD's additions.
func (c *conn) adapt(b, lines []byte) []byte {
	for line := range bytes.Lines(lines) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		name, rest, _ := bytes.Cut(line, []byte("|"))
		kind, more, extended := bytes.Cut(rest, []byte("|"))
		b = append(b, name...)
		b = append(b, '|')
		b = append(b, kind...)
		if c.rate > 0 && c.rate < 1 {
			b = append(b, "|@"...)
			b = strconv.AppendFloat(b, c.rate, 'f', 6, 64)
		}
		if extended && !c.plain {
			b = append(b, '|')
			b = append(b, more...)
		}
		b = append(b, '\n')
	}
	return b
}

// Close ends the connection.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c != nil {
		c.hangUp()
	}
	return nil
}

var _ io.WriteCloser = (*conn)(nil)
