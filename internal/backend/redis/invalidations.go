package redis

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// InvalidationsOptions are the settings of Invalidations.
type InvalidationsOptions struct {
	// Client is connected to the Redis that the replicas share; required. Reading holds a connection all the time, so this
	// should not be the client that counts.
	Client goredis.UniversalClient

	Key string // key of the stream; required

	// Forget is called by Run for a counter whose hits another replica has given back. cleared means that they were all
	// cleared, which also voids permits. The key is valid until it returns. Required.
	Forget func(key []byte, cleared bool)
	// ForgetAll is called by Run when Forget may be due for any counter. Required.
	ForgetAll func(cleared bool)

	Metrics metric.Registry // nil disables metrics
	Logger  *slog.Logger    // default slog.Default()
}

// Invalidations tell the replicas that share a Redis which counters were cleared, and which had hits given back, so
// that each replica forgets its denials and permits of them. The messages are in a stream. Run reads it and sends
// waiting messages.
//
// # Why no message is missed
//
// Run reads the stream over one connection. After each new connection it finds the end of the stream first, and then
// calls ForgetAll. So ForgetAll covers the messages before, and later messages are read. While the connection lasts,
// the numbers of the messages show whether one was removed before it was read. An end of the stream that lies before
// the last message shows that Redis has lost data. In both cases Run starts again.
//
// A message that cannot be sent is sent again until Redis accepts it. Waiting messages are bounded; beyond the bound,
// one message for all counters replaces them. Forgetting a denial costs a trip to Redis, and forgetting permits costs
// these permits, but an outdated denial could deny a customer for a whole window. A replica that is killed loses the
// messages of the last moment (gather).
//
// A message names the key of a counter. A replica then forgets its remembered denials and permits of that counter, for
// all limits and rules.
type Invalidations struct {
	opts InvalidationsOptions
	name string // name of this replica, which skips its own messages

	refunds, resets pending
	wake            chan struct{}

	denied    atomic.Bool // whether Redis does not let this user use the stream, or a proxy does not support it
	connected atomic.Bool

	events [len(eventNames)]atomic.Uint64
}

// The events that are counted.
const (
	eventSent = iota
	eventReceived
	eventDropped
	eventForgotAll
)

var eventNames = [...]string{eventSent: "sent", eventReceived: "received", eventDropped: "dropped",
	eventForgotAll: "forgot_all"}

const (
	keptMessages = 256 // length of the stream
	maxPending   = 16 << 10
	gather       = 20 * time.Millisecond // how long refunds wait for others, to share a message

	readBlock = 400 * time.Millisecond // how long Redis waits for a message before it answers without one
	// additional time for an answer. Less would make a slow Redis slower, because each miss forgets everything
	readGrace  = 2 * time.Second
	retryAfter = 100 * time.Millisecond
	retryMost  = time.Second
	deniedFor  = 10 * time.Second // time between two attempts while the user has too few rights
	sendWithin = 2 * time.Second
)

// NewInvalidations returns Invalidations that are sent and received by Run.
func NewInvalidations(opts InvalidationsOptions) *Invalidations {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	name := make([]byte, 8)
	_, _ = rand.Read(name) // it never fails
	v := &Invalidations{opts: opts, name: hex.EncodeToString(name), wake: make(chan struct{}, 1)}
	metric.Register(opts.Metrics,
		metric.Counters("ratelimitd_invalidations_total",
			"Messages about reset or refunded counters.",
			"event", eventNames[:], v.events[:]),
		metric.Gauge("ratelimitd_invalidations_connected",
			"1 while this replica learns of other replicas' resets and refunds.",
			func() float64 { return metric.Bool(v.connected.Load()) }))
	return v
}

// pending holds keys that wait to be sent.
type pending struct {
	mu   sync.Mutex
	keys []byte // packed: each key after its length
	all  bool   // too many keys: send a message for all counters
	free []byte // memory of a message that was sent
}

// add reports whether there was room for the key.
func (p *pending) add(key []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all {
		return false
	}
	if len(p.keys) > 0 && len(p.keys)+binary.MaxVarintLen64+len(key) > maxPending {
		p.all, p.keys = true, p.keys[:0]
		return false
	}
	p.keys = appendKey(p.keys, key)
	return true
}

// take empties p.
func (p *pending) take() (keys []byte, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys, all = p.keys, p.all
	p.keys, p.free, p.all = p.free[:0], nil, false
	return keys, all
}

// put returns the memory of keys.
func (p *pending) put(keys []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cap(keys) <= 2*maxPending {
		p.free = keys[:0]
	}
}

func appendKey(keys, key []byte) []byte {
	return append(binary.AppendUvarint(keys, uint64(len(key))), key...)
}

// eachKey calls f with each of the packed keys. It returns false if they are damaged.
func eachKey(keys string, f func(key []byte)) bool {
	b := []byte(keys)
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return false
		}
		b = b[size:]
		f(b[:n])
		b = b[n:]
	}
	return true
}

// Refunded sends later that hits of a counter were given back. It does not wait.
func (v *Invalidations) Refunded(key []byte) { v.add(&v.refunds, key) }

func (v *Invalidations) add(p *pending, key []byte) {
	if v.denied.Load() {
		return
	}
	if !p.add(key) {
		v.events[eventDropped].Add(1)
	}
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Cleared sends that counters were cleared. If that fails, it is sent later, and an error is returned. If Redis does
// not let this user use the stream, or is behind a proxy, Cleared returns nil: Run logs that.
func (v *Invalidations) Cleared(ctx context.Context, counters []backend.Counter) error {
	var keys []byte
	for i := range counters {
		keys = appendKey(keys, counters[i].Key)
	}
	err := v.send(ctx, message{resets: keys})
	if err == nil || isDenied(err) || v.denied.Load() {
		return nil
	}
	for i := range counters {
		v.add(&v.resets, counters[i].Key)
	}
	return fmt.Errorf("%w: the counters are cleared; other replicas learn it later: %w", backend.ErrUnavailable, err)
}

// message has the packed keys of counters.
type message struct {
	refunds, resets       []byte
	allRefunds, allResets bool
}

// The fields of a message in the stream. The script adds the first one.
const (
	fieldNumber  = "n"
	fieldBy      = "by"
	fieldRefunds = "refunds"
	fieldResets  = "resets"
	fieldAll     = "all" // one of the two names above
)

func (v *Invalidations) send(ctx context.Context, m message) error {
	args := []any{keptMessages, fieldBy, v.name}
	if len(m.refunds) > 0 {
		args = append(args, fieldRefunds, m.refunds)
	}
	if len(m.resets) > 0 {
		args = append(args, fieldResets, m.resets)
	}
	switch {
	case m.allResets: // covers the refunds, too
		args = append(args, fieldAll, fieldResets)
	case m.allRefunds:
		args = append(args, fieldAll, fieldRefunds)
	}
	script, keys := scripts.Numbered(), []string{v.opts.Key}
	err := v.opts.Client.EvalSha(ctx, script.Hash, keys, args...).Err()
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		err = v.opts.Client.Eval(ctx, script.Text, keys, args...).Err()
	}
	if err != nil {
		return fmt.Errorf("send an invalidation: %w", err)
	}
	v.events[eventSent].Add(1)
	return nil
}

// isDenied reports whether Redis will answer with this error until its settings are changed.
func isDenied(err error) bool {
	answer := goredis.Error(nil)
	return errors.As(err, &answer) && !errors.Is(err, goredis.Nil) && !redisconn.IsTransient(answer) &&
		!goredis.HasErrorPrefix(err, "MOVED") && !goredis.HasErrorPrefix(err, "ASK") &&
		!goredis.HasErrorPrefix(err, "UNBLOCKED")
}

// Run sends and receives until ctx ends. It returns nil. A read that waits for a message then may end a moment later.
func (v *Invalidations) Run(ctx context.Context) error {
	go v.receive(ctx)
	v.sendAll(ctx)
	return nil
}

// sendAll sends waiting messages until ctx ends, and then the remaining ones.
func (v *Invalidations) sendAll(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-v.wake:
			pause(ctx, gather)
		}
		var m message
		m.refunds, m.allRefunds = v.refunds.take()
		m.resets, m.allResets = v.resets.take()
		for wait := retryAfter; len(m.refunds) > 0 || len(m.resets) > 0 || m.allRefunds ||
			m.allResets; wait = min(2*wait, retryMost) {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendWithin)
			err := v.send(within, m)
			cancel()
			if err == nil || isDenied(err) || ctx.Err() != nil {
				break
			}
			pause(ctx, wait)
		}
		v.refunds.put(m.refunds)
		v.resets.put(m.resets)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// receive reads the stream, over a new connection after each error.
func (v *Invalidations) receive(ctx context.Context) {
	defer v.connected.Store(false)
	for wait := retryAfter; ctx.Err() == nil; wait = min(2*wait, retryMost) {
		c, at, err := v.attach(ctx)
		if err == nil {
			wait = retryAfter
			v.denied.Store(false)
			v.connected.Store(true)
			err = v.read(ctx, c, at)
			v.connected.Store(false)
			_ = c.Close()
		}
		switch {
		case ctx.Err() != nil:
			return
		case v.behindProxy(ctx, err):
			if !v.denied.Swap(true) {
				v.opts.Logger.Warn("the proxy before Redis knows no streams, so resets and refunds are not shared with other "+
					"replicas: their denial caches and leases may be out of date until a window ends", "key", v.opts.Key, "error", err)
			}
			pause(ctx, deniedFor)
		case isDenied(err):
			if !v.denied.Swap(true) && !redisconn.IsMistake(err) { // programs that wait for Redis report wrong settings
				v.opts.Logger.Warn("Redis does not let this user share resets and refunds with other replicas: their denial "+
					"caches and leases may be out of date until a window ends; grant +xadd +xread +xrevrange", "key", v.opts.Key,
					"error", err)
			}
			pause(ctx, deniedFor)
		default:
			v.opts.Logger.Debug("the stream of invalidations is read again", "error", err)
			if c, ok := v.opts.Client.(*goredis.ClusterClient); ok {
				c.ReloadState(ctx) // the slot may have moved
			}
			pause(ctx, wait)
		}
	}
}

// behindProxy reports whether the stream fails because a proxy sends keys to several servers. Some proxies close the
// connection when they get a command that they do not know.
func (v *Invalidations) behindProxy(ctx context.Context, err error) bool {
	if isDeniedRight(err) || redisconn.IsTimeout(err) {
		return false
	}
	_, err = OneKeyspace(ctx, v.opts.Client, strings.TrimSuffix(v.opts.Key, InvalidationsKey))
	return errors.Is(err, ErrServers)
}

// position is a place in the stream.
type position struct {
	id string
	n  uint64 // number of the message there
}

// attach makes a connection, finds the end of the stream and forgets everything.
func (v *Invalidations) attach(ctx context.Context) (*goredis.Conn, position, error) {
	var conn *goredis.Conn
	switch c := v.opts.Client.(type) {
	case *goredis.ClusterClient:
		node, err := c.MasterForKey(ctx, v.opts.Key)
		if err != nil {
			return nil, position{}, err
		}
		conn = node.EphemeralConn()
	case interface{ EphemeralConn() *goredis.Conn }:
		conn = c.EphemeralConn()
	default:
		return nil, position{}, fmt.Errorf("a client of type %T has no connection of its own", c)
	}
	at, err := v.end(ctx, conn)
	if err == nil {
		within, cancel := context.WithTimeout(ctx, readGrace)
		// read reads it again
		err = conn.XRead(within, &goredis.XReadArgs{Streams: []string{v.opts.Key, at.id}, Count: 1, Block: -1}).Err()
		cancel()
		if errors.Is(err, goredis.Nil) {
			err = nil
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, position{}, err
	}
	v.forgetAll(true)
	return conn, at, nil
}

// end returns the end of the stream.
func (v *Invalidations) end(ctx context.Context, c *goredis.Conn) (position, error) {
	within, cancel := context.WithTimeout(ctx, readGrace)
	defer cancel()
	last, err := c.XRevRangeN(within, v.opts.Key, "+", "-", 1).Result()
	if err != nil {
		return position{}, fmt.Errorf("find the end of the stream: %w", err)
	}
	if len(last) == 0 {
		return position{id: "0-0"}, nil
	}
	return position{last[0].ID, number(&last[0])}, nil
}

func number(m *goredis.XMessage) uint64 {
	text, _ := m.Values[fieldNumber].(string)
	n, _ := strconv.ParseUint(text, 10, 64) // 0 for a message of another program
	return n
}

// before reports whether the ID of a message is lower than another.
func before(a, b string) bool {
	am, as := split(a)
	bm, bs := split(b)
	return am < bm || am == bm && as < bs
}

// split returns the two numbers of a message's ID.
func split(id string) (ms, sequence uint64) {
	first, second, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(first, 10, 64)
	sequence, _ = strconv.ParseUint(second, 10, 64)
	return ms, sequence
}

// errLost is returned when the end of the stream is not the last message that was read, and not behind it.
var errLost = errors.New("the stream has lost messages")

// read receives messages after a position until an error.
func (v *Invalidations) read(ctx context.Context, c *goredis.Conn, at position) error {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, readBlock+readGrace)
		streams, err := c.XRead(within, &goredis.XReadArgs{Streams: []string{v.opts.Key, at.id}, Count: 16,
			Block: readBlock}).Result()
		cancel()
		switch {
		case errors.Is(err, goredis.Nil):
			end, err := v.end(ctx, c)
			if err != nil {
				return err
			}
			if before(end.id, at.id) || end.id == at.id && end.n != at.n {
				return errLost // new messages may even start with the ID of the last one, within the same millisecond
			}
			continue
		case err != nil:
			return fmt.Errorf("read the stream: %w", err)
		}
		for i := range streams {
			for j := range streams[i].Messages {
				m := &streams[i].Messages[j]
				n := number(m)
				if n != at.n+1 {
					v.forgetAll(true)
				}
				at = position{m.ID, n}
				v.handle(m)
			}
		}
	}
	return ctx.Err()
}

// handle acts on a message.
func (v *Invalidations) handle(m *goredis.XMessage) {
	if m.Values[fieldBy] == v.name {
		return
	}
	defer v.events[eventReceived].Add(1)
	if all, ok := m.Values[fieldAll].(string); ok {
		v.forgetAll(all == fieldResets)
	}
	refunds, _ := m.Values[fieldRefunds].(string)
	resets, _ := m.Values[fieldResets].(string)
	if !eachKey(refunds, func(key []byte) { v.opts.Forget(key, false) }) ||
		!eachKey(resets, func(key []byte) { v.opts.Forget(key, true) }) {
		v.forgetAll(true)
	}
}

func (v *Invalidations) forgetAll(cleared bool) {
	v.events[eventForgotAll].Add(1)
	v.opts.ForgetAll(cleared)
}
