package redis

import (
	"context"
	"errors"
	"slices"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// flush settles requests in one round trip; on a cluster, in one to each node. It has the store's timeout. Callers with an
// earlier deadline leave earlier. It reports whether most takes were of a few hot counters, or returns hot if it does not
// know.
func (q *queue) flush(batch []*inFlight, hot bool) bool {
	if !q.store.cluster || len(batch) == 1 {
		return q.send(batch)
	}
	at := latest(batch)
	m := q.store.terms(at, true, 0)
	c := scriptCalls.Get().(*scriptCall)
	slots := make(map[uint16]*inSlot)
	for _, p := range batch {
		key, _ := c.keyOf(&p.request.Takes[0], &m)
		n := slotOf(key)
		if slots[n] == nil {
			slots[n] = &inSlot{key: string(key)}
		}
		slots[n].batch = append(slots[n].batch, p)
	}
	c.release()
	if len(slots) == 1 && !m.lyft {
		return q.send(batch)
	}
	ctx, cancel := q.store.bound(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for _, batches := range q.byNode(ctx, slots) {
		wg.Go(func() { q.pipeline(ctx, batches, at, m) })
	}
	wg.Wait()
	return hot
}

// inSlot is a group of requests whose counters are in one slot, and one key of that slot.
type inSlot struct {
	key   string
	batch []*inFlight
}

// byNode groups the requests of many slots by the node that probably owns each slot, so that a node that does not answer
// delays only its own requests.
func (q *queue) byNode(ctx context.Context, slots map[uint16]*inSlot) map[*goredis.Client][][]*inFlight {
	nodes := make(map[*goredis.Client][][]*inFlight)
	client := q.store.opts.Client.(*goredis.ClusterClient)
	for _, s := range slots {
		// If the owner cannot be found, such requests share one pipeline, whose error has the reason.
		node, _ := client.MasterForKey(ctx, s.key)
		nodes[node] = append(nodes[node], s.batch)
	}
	return nodes
}

func requestsOf(batch []*inFlight) []*backend.Request {
	requests := make([]*backend.Request, len(batch))
	for i, p := range batch {
		requests[i] = &p.request
	}
	return requests
}

// latest returns the time of the newest request.
func latest(batch []*inFlight) (at int64) {
	for _, p := range batch {
		at = max(at, p.at)
	}
	return at
}

// send settles requests in one call. It reports whether most takes were of a few hot counters.
func (q *queue) send(batch []*inFlight) (hot bool) {
	c := scriptCalls.Get().(*scriptCall)
	err := q.store.take(context.Background(), latest(batch), c, requestsOf(batch)...)
	hot = c.sent*hotRatio <= len(c.takeKeys)
	c.release()
	q.finishAll(batch, err)
	return hot
}

// finishAll answers the requests of a call. If the requests could not share it, they are sent again one by one. If Redis' memory
// is full, only some of the requests have an answer.
func (q *queue) finishAll(batch []*inFlight, err error) {
	apart := false
	if len(batch) > 1 && err != nil {
		apart = goredis.HasErrorPrefix(err, tryAgain) || errors.As(err, new(unsendable))
		if !apart && reservationsFailed(batch, err) {
			apart, batch = true, q.sendPlain(batch)
		}
	}
	full := errors.Is(err, errFull)
	for _, p := range batch {
		if full {
			if err = nil; slices.ContainsFunc(p.request.Outcomes, func(o backend.Outcome) bool { return o.Failed }) {
				err = errFull
			}
		}
		if apart {
			c := scriptCalls.Get().(*scriptCall)
			err = q.store.take(context.Background(), p.at, c, &p.request)
			c.release()
		}
		q.finish(p, err)
	}
}

// reservationsFailed reports whether a call did nothing, and may have failed because of requests that concern reservations: these need
// more rights, and reservations that can be read.
func reservationsFailed(batch []*inFlight, err error) bool {
	var refused goredis.Error
	return errors.As(err, &refused) && !goredis.HasErrorPrefix(err, partlyWritten) && slices.ContainsFunc(batch, (*inFlight).concernsReservations)
}

func (f *inFlight) concernsReservations() bool {
	return slices.ContainsFunc(f.request.Takes, func(t backend.Take) bool { return concernsReservations(&t) })
}

// sendPlain sends the requests of a call again that do not concern reservations, and returns the others.
func (q *queue) sendPlain(batch []*inFlight) (others []*inFlight) {
	var plain []*inFlight
	for _, p := range batch {
		if p.concernsReservations() {
			others = append(others, p)
		} else {
			plain = append(plain, p)
		}
	}
	if len(plain) > 0 {
		q.sendAgain(latest(plain), scriptCalls.Get().(*scriptCall), plain)
	}
	return others
}

// pipeline settles the requests of each slot in one call, and sends all calls together. The slots were found with the terms m.
// The end of ctx is not a caller's deadline, and must not look like one. A second attempt has its own timeout.
func (q *queue) pipeline(ctx context.Context, slots [][]*inFlight, at int64, m terms) {
	s := q.store
	type slotCall struct {
		batch    []*inFlight
		requests []*backend.Request
		call     *scriptCall
		cmd      *goredis.ZeroCopyStringCmd
	}
	pipe := s.opts.Client.Pipeline()
	var all []slotCall
	for _, batch := range slots {
		f := slotCall{batch: batch, requests: requestsOf(batch), call: scriptCalls.Get().(*scriptCall)}
		if err := f.call.pack(m, f.requests...); err != nil {
			f.call.release()
			q.finishAll(batch, unsendable{err})
			continue
		}
		f.cmd = f.call.command(ctx, "evalsha", f.call.script.Hash)
		_ = pipe.Process(ctx, f.cmd)
		all = append(all, f)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, f := range all {
		err := f.cmd.Err()
		if err == nil {
			f.call.reply = f.cmd.Bytes()
			if len(f.call.reply) < 8 {
				err = errReply
			}
		}
		switch {
		case err == nil:
			now, _, wanted := f.call.retry()
			if wanted { // nothing was done
				s.ahead.Store(now - at)
				q.sendAgain(at, f.call, f.batch)
				continue
			}
			if now, err = f.call.settle(); err == nil && f.call.calendar {
				s.ahead.Store(now - at)
			}
		case goredis.HasErrorPrefix(err, "NOSCRIPT"), goredis.HasErrorPrefix(err, noTime), // nothing was done
			errors.Is(err, goredis.ErrPoolTimeout): // nothing was sent; a probe may have had the connection
			q.sendAgain(at, f.call, f.batch)
			continue
		default:
			err = s.failure(context.Background(), err)
		}
		f.call.release()
		q.finishAll(f.batch, err)
	}
}

// sendAgain settles requests whose first call did nothing. Keys that contain the time may now be in different slots, so with
// such keys each request is sent by itself.
func (q *queue) sendAgain(at int64, c *scriptCall, batch []*inFlight) {
	defer c.release()
	if !q.store.opts.LyftKeys {
		q.finishAll(batch, q.store.take(context.Background(), at, c, requestsOf(batch)...))
		return
	}
	for _, p := range batch {
		q.finish(p, q.store.take(context.Background(), at, c, &p.request))
	}
}
