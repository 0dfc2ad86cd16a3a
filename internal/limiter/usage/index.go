package usage

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Store keeps sets of texts. Each text ends at a time, in milliseconds since the Unix epoch. The names of all sets of a
// domain start with the same domainBytes bytes, so that a store can divide its space between domains.
type Store interface {
	// Add adds texts to sets: sets[set][text] is when the text ends. A text that is there already ends at the later time.
	// When space runs out, texts are left out or removed; dropped counts them.
	Add(ctx context.Context, now time.Time, sets map[string]map[string]int64) (dropped int, err error)

	// Page returns about count texts of a set that have not ended, and the number at which the next page starts, 0 after
	// the last page. The first page starts at 0. A text that is in the set during the whole listing is on one of the
	// pages, or on several.
	Page(ctx context.Context, now time.Time, set string, at uint64, count int) (texts []string, next uint64, err error)
}

// Options are the settings of an Index.
type Options struct {
	Store   Store           // required
	Metrics metric.Registry // if nil, metrics are counted but not registered
	Logger  *slog.Logger    // default slog.Default()
}

// Index records descriptors with live counters.
type Index struct {
	opts   Options
	seed   maphash.Seed
	shards [shardCount]shard

	wake   chan struct{}
	failed bool // the last batch

	dropped atomic.Int64
}

const (
	shardCount = 64
	maxRecent  = 2048    // descriptors in a shard
	maxQueue   = 128     // descriptors that wait in a shard
	maxBytes   = 4 << 10 // size of a descriptor in bytes

	gather      = 100 * time.Millisecond
	writeWithin = 2 * time.Second
	slack       = time.Second // the ends of one window, as seen by several requests, differ by less
)

// shard remembers until when descriptors have been recorded, and holds those that are not written yet.
type shard struct {
	mu      sync.Mutex
	until   map[uint64]int64 // end in milliseconds, keyed by the hash of the counter's key and the descriptor
	queue   []item
	waiting map[string]int // how many in the queue are of a domain
}

type item struct {
	hash    uint64
	domain  string
	entries string // packed
	end     int64
}

// New returns an empty index.
func New(opts Options) *Index {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	x := &Index{opts: opts, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1)}
	metric.Register(opts.Metrics,
		metric.Counter("ratelimitd_usage_dropped_total",
			"Descriptors missing in the index of rules with usage.", x.dropped.Load))
	return x
}

// Record records that the counter with this key is in use for a while from now, by a descriptor. Several descriptors
// may use one counter, under different rules and numbers: each is recorded. moves is the longest time by which further
// use can still postpone the counter's end. Record copies its arguments.
func (x *Index) Record(now time.Time, key []byte, domain string, entries []descriptor.Entry, ends,
	moves time.Duration) {
	end := now.Add(ends).UnixMilli()
	hash := x.hash(key, entries)
	sh := &x.shards[hash%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if end <= sh.until[hash] {
		return
	}
	end += (moves + slack).Milliseconds()
	added, dropped := sh.enqueue(hash, domain, entries, end)
	x.dropped.Add(dropped)
	if !added {
		return
	}
	if len(sh.queue) == 1 {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
	if sh.until == nil {
		sh.until = make(map[uint64]int64)
	}
	if len(sh.until) >= maxRecent {
		for other := range sh.until { // evict an arbitrary one: that costs only one more write
			delete(sh.until, other)
			break
		}
	}
	sh.until[hash] = end
}

func (x *Index) hash(key []byte, entries []descriptor.Entry) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	h.Write(key)
	for i := range entries {
		h.WriteByte(0)
		h.WriteString(entries[i].Key)
		h.WriteByte(0)
		h.WriteString(entries[i].Value)
	}
	return h.Sum64()
}

// enqueue adds a descriptor to those that wait. In a full queue it takes the place of one of a domain with more of
// them, so that a flood of one domain does not hide the others.
func (sh *shard) enqueue(hash uint64, domain string, entries []descriptor.Entry,
	end int64) (added bool, dropped int64) {
	size := len(domain)
	for i := range entries {
		size += len(entries[i].Key) + len(entries[i].Value)
	}
	if size > maxBytes {
		return false, 1
	}
	place := len(sh.queue)
	if place >= maxQueue {
		place = int(hash / shardCount % maxQueue) // any
		other := &sh.queue[place]
		if sh.waiting[other.domain] <= sh.waiting[domain]+1 {
			return false, 1
		}
		sh.waiting[other.domain]--
		delete(sh.until, other.hash)
		dropped = 1
	} else {
		sh.queue = append(sh.queue, item{})
	}
	it := item{hash, strings.Clone(domain), pack(entries), end}
	sh.queue[place] = it
	if sh.waiting == nil {
		sh.waiting = make(map[string]int)
	}
	sh.waiting[it.domain]++
	return true, dropped
}

// Run writes the queued descriptors until ctx ends, and then the rest. It returns nil.
func (x *Index) Run(ctx context.Context) error {
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-x.wake:
			timer.Reset(gather)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
		x.Flush(context.WithoutCancel(ctx), time.Now())
	}
	return nil
}

// Flush writes the queued descriptors.
func (x *Index) Flush(ctx context.Context, now time.Time) {
	var items []item
	for i := range x.shards {
		sh := &x.shards[i]
		sh.mu.Lock()
		items = append(items, sh.queue...)
		sh.queue = nil
		clear(sh.waiting)
		sh.mu.Unlock()
	}
	if len(items) == 0 {
		return
	}
	sets := make(map[string]map[string]int64)
	for i := range items {
		it := &items[i]
		entries, _ := unpack(it.entries)
		for _, e := range entries {
			set := setOf(it.domain, e)
			if sets[set] == nil {
				sets[set] = make(map[string]int64)
			}
			sets[set][it.entries] = max(sets[set][it.entries], it.end)
		}
	}
	within, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	dropped, err := x.opts.Store.Add(within, now, sets)
	if err != nil {
		x.dropped.Add(int64(len(items)))
		x.forget()
		if !x.failed {
			x.opts.Logger.Warn("counters in use are not written to the index of usage: lists miss them until they "+
				"are used again", "error", err)
		}
		x.failed = true
		return
	}
	x.failed = false
	x.dropped.Add(int64(dropped))
}

// forget clears the recorded counters, so that the next use of each one is recorded again.
func (x *Index) forget() {
	for i := range x.shards {
		x.shards[i].mu.Lock()
		clear(x.shards[i].until)
		x.shards[i].mu.Unlock()
	}
}

// List returns descriptors that have one of the entries of each element of where, and a live counter. The first element
// is one entry. A page starts at a number that List returned, the first one at 0. It has about count descriptors, or
// fewer: even an empty page may be followed by others.
func (x *Index) List(ctx context.Context, now time.Time, domain string, where [][]descriptor.Entry, at uint64,
	count int) (found [][]descriptor.Entry, next uint64, err error) {
	texts, next, err := x.opts.Store.Page(ctx, now, setOf(domain, where[0][0]), at, count)
	if err != nil {
		return nil, 0, err
	}
	for _, text := range texts {
		entries, ok := unpack(text)
		lacks := func(some []descriptor.Entry) bool {
			return !slices.ContainsFunc(some, func(e descriptor.Entry) bool { return slices.Contains(entries, e) })
		}
		if ok && !slices.ContainsFunc(where, lacks) {
			found = append(found, entries)
		}
	}
	return found, next, nil
}

// domainBytes is the number of bytes, at the start of a set's name, that identify its domain.
const domainBytes = 8

// setOf is the name of the set of descriptors with an entry. Its length does not depend on the entry.
func setOf(domain string, e descriptor.Entry) string {
	ofDomain, ofEntry := sha256.Sum256([]byte(domain)), sha256.Sum256([]byte(pack([]descriptor.Entry{e})))
	return base64.RawURLEncoding.EncodeToString(ofDomain[:domainBytes*3/4]) +
		base64.RawURLEncoding.EncodeToString(ofEntry[:12])
}

func pack(entries []descriptor.Entry) string {
	var b []byte
	for _, e := range entries {
		for _, text := range [...]string{e.Key, e.Value} {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return string(b)
}

func unpack(text string) (entries []descriptor.Entry, ok bool) {
	b := []byte(text)
	read := func() (s string) {
		n, size := binary.Uvarint(b)
		if ok = size > 0 && n <= uint64(len(b)-size); ok {
			s, b = string(b[size:size+int(n)]), b[size+int(n):]
		}
		return s
	}
	for len(b) > 0 {
		e := descriptor.Entry{Key: read()}
		if !ok {
			return nil, false
		}
		if e.Value = read(); !ok {
			return nil, false
		}
		entries = append(entries, e)
	}
	return entries, true
}
