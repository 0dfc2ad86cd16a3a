package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// Records keeps the records of limits across regions in Redis. It implements backend.Records. Changes that are begun while others are
// on their way are sent together, in one call; on a cluster, in one call for each record. Redis' own clock decides: a server that does not give scripts
// the time keeps no records.
type Records struct {
	store   *Store
	client  goredis.UniversalClient
	cluster *goredis.ClusterClient // nil: the server is none
	timeout time.Duration

	mu     sync.Mutex
	queues map[string]*recordQueue // by node, so that one that hangs delays only its own
}

// recordQueue has the changes that wait for one node.
type recordQueue struct {
	waiting []*backend.RecordChange
	calls   int // on their way
}

const (
	// fewCalls is how many calls may be on their way to a node: with two, one is prepared while Redis works on the other.
	fewCalls = 2
	// maxRecords is how many records one call changes. Redis does nothing else meanwhile.
	maxRecords = 64
)

// NewRecords returns the records in the Redis of a store, with its client and timeout. The store sends the takes from accounts together with
// its own. Its client may be closed after all changes are done.
func NewRecords(s *Store) *Records {
	r := &Records{store: s, client: s.opts.Client, timeout: s.opts.Timeout, queues: make(map[string]*recordQueue)}
	if r.timeout <= 0 {
		r.timeout = redisconn.DefaultTimeout
	}
	r.cluster, _ = r.client.(*goredis.ClusterClient)
	return r
}

// Start implements backend.Records.
func (r *Records) Start(ctx context.Context, now time.Time, b *backend.Batch, request *backend.Request, done func(error)) (settled bool, err error) {
	return r.store.Start(ctx, now, b, request, done)
}

// Clock implements backend.Records: it is the address of the node.
func (r *Records) Clock(key []byte) string {
	if r.cluster == nil {
		return ""
	}
	node, err := r.cluster.MasterForKey(context.Background(), string(key))
	if err != nil {
		return "" // the call will return the reason
	}
	return node.Options().Addr
}

// Change implements backend.Records.
func (r *Records) Change(c *backend.RecordChange) {
	node := r.Clock(c.Key)
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[node]
	if q == nil {
		if len(r.queues) >= maxQueues { // nodes whose addresses keep changing
			clear(r.queues)
		}
		q = new(recordQueue)
		r.queues[node] = q
	}
	q.waiting = append(q.waiting, c)
	if q.calls < fewCalls {
		q.calls++
		go r.call(q)
	}
}

// call sends what waits until nothing does.
func (r *Records) call(q *recordQueue) {
	var batch []*backend.RecordChange
	for {
		r.mu.Lock()
		n := min(len(q.waiting), maxRecords)
		if n == 0 {
			q.calls--
			q.waiting = nil
			r.mu.Unlock()
			return
		}
		batch = append(batch[:0], q.waiting[:n]...)
		clear(q.waiting[:n])
		q.waiting = q.waiting[n:]
		r.mu.Unlock()
		r.send(batch)
		for _, c := range batch {
			c.Done()
		}
		clear(batch)
	}
}

// send makes one call, and fills in the answers.
func (r *Records) send(batch []*backend.RecordChange) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	if r.cluster == nil {
		switch r.store.known(ctx) {
		case OneServer:
			r.run(ctx, r.client, batch)
			return
		case Slots:
		default:
			r.answer(batch, nil, errSeveralServers)
			return
		}
	}
	script, pipe := scripts.Records(), r.client.Pipeline()
	cmds := make([]*goredis.Cmd, len(batch))
	for i, c := range batch {
		keys, args := recordArgs(batch[i : i+1])
		cmds[i] = pipe.EvalSha(ctx, script.Hash, keys, args...)
		c.Err = nil
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, c := range batch {
		reply, err := cmds[i].Slice()
		if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
			r.run(ctx, r.client, batch[i:i+1])
			continue
		}
		r.answer([]*backend.RecordChange{c}, reply, err)
	}
}

// run changes records in one call of the script.
func (r *Records) run(ctx context.Context, to goredis.Cmdable, batch []*backend.RecordChange) {
	script := scripts.Records()
	keys, args := recordArgs(batch)
	reply, err := to.EvalSha(ctx, script.Hash, keys, args...).Slice()
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = to.Eval(ctx, script.Text, keys, args...).Slice()
	}
	r.answer(batch, reply, err)
}

// recordArgs returns the arguments of the script.
func recordArgs(batch []*backend.RecordChange) (keys []string, args []any) {
	keys, args = make([]string, 0, 2*len(batch)), make([]any, 0, 3*len(batch))
	for _, c := range batch {
		terms := make([]byte, 0, 41)
		terms = binary.LittleEndian.AppendUint64(terms, uint64(c.NotBefore))
		terms = binary.LittleEndian.AppendUint64(terms, uint64(c.NotAfter))
		terms = binary.LittleEndian.AppendUint64(terms, uint64(c.Lives.Milliseconds()))
		terms = binary.LittleEndian.AppendUint64(terms, uint64(c.Taken))
		terms = binary.LittleEndian.AppendUint64(terms, uint64(c.Most))
		if c.Read {
			terms = append(terms, 1)
		} else {
			terms = append(terms, 0)
		}
		keys = append(keys, string(c.Key), string(appendRecordKey(nil, c.Key, c.Kind)))
		args = append(args, c.Stamp, c.Value, terms)
	}
	return keys, args
}

// answer fills in the answers of the script.
func (r *Records) answer(batch []*backend.RecordChange, reply []any, err error) {
	at := int64(0)
	if err == nil && len(reply) == len(batch)+1 {
		text, _ := reply[0].(string)
		at, err = strconv.ParseInt(text, 10, 64)
	} else if err == nil {
		err = errReply
	}
	for i, c := range batch {
		c.Err, c.At, c.Present, c.Counted = nil, at, nil, false
		if err == nil {
			text, _ := reply[i+1].(string)
			if c.Err = readRecord(c, text); c.Err == nil {
				continue
			}
		}
		c.Err = recordFailure(errors.Join(err, c.Err))
	}
}

// readRecord reads the answer about one record.
func readRecord(c *backend.RecordChange, text string) error {
	switch {
	case len(text) == 9 && text[0] == '=':
		c.Result, c.More = backend.RecordWritten, int64(binary.LittleEndian.Uint64([]byte(text[1:])))
	case text == "t":
		c.Result = backend.RecordUntimely
	case text == "0" || text == "1":
		c.Result, c.Counted = backend.RecordDiffers, text == "1"
	case text != "" && text[0] == '!':
		c.Result, c.Present = backend.RecordDiffers, []byte(text[1:])
	default:
		return errReply
	}
	return nil
}

var errSeveralServers = errors.New("limits across regions need one server or a cluster, and behind this address are, or may be, several servers with their own clocks")

func recordFailure(err error) error {
	if goredis.HasErrorPrefix(err, noTime) {
		return fmt.Errorf("keep a record about a limit across regions, which needs a Redis that gives scripts the time: %w: %w", backend.ErrUnavailable, err)
	}
	return fmt.Errorf("keep a record about a limit across regions: %w: %v", backend.ErrUnavailable, err) //nolint:errorlint // the call's timeout must not look like the caller's
}
