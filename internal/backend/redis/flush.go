package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// flush settles requests in one round trip. It has the store's timeout. Callers with an earlier deadline leave earlier.
// It reports whether most takes were of a few hot counters. If it cannot tell, it returns hot.
func (q *queue) flush(batch []*inFlight, hot bool) bool {
	if !q.store.apart() {
		q.store.lookAgain()
		return q.send(batch)
	}
	switch batch = q.settleWide(batch); len(batch) {
	case 0:
		return hot
	case 1:
		return q.send(batch)
	}
	at := latest(batch)
	m := q.store.terms(at, true, 0)
	c := scriptCalls.Get().(*scriptCall)
	for _, p := range batch {
		if q.store.cluster {
			key, _ := c.keyOf(&p.request.Takes[0], &m)
			p.slot = slotID(slotOf(key))
		} else {
			p.slot = q.store.slotID(&p.request.Takes[0])
		}
	}
	key, _ := c.keyOf(&batch[0].request.Takes[0], &m)
	first := string(key)
	c.release()
	slices.SortStableFunc(batch, func(p, other *inFlight) int { return cmp.Compare(p.slot, other.slot) })
	if batch[0].slot == batch[len(batch)-1].slot && !m.lyft {
		return q.send(batch)
	}
	q.sendSlots(batch, first, at, m)
	return hot
}

// settleWide settles the requests of a flush whose counters are in several slots, and returns the others. Start lets
// such requests wait in the queue only as long as all counters can share a script.
func (q *queue) settleWide(batch []*inFlight) []*inFlight {
	if q.store.cluster {
		return batch
	}
	return slices.DeleteFunc(batch, func(p *inFlight) bool {
		if q.store.inOneSlot(&p.request) {
			return false
		}
		q.workers.Go(func() { q.finish(p, q.store.settle(context.Background(), p.at, &p.request)) })
		return true
	})
}

// severalSlots reports whether the counters of requests are in several slots.
func (s *Store) severalSlots(batch []*inFlight) bool {
	first := s.slotID(&batch[0].request.Takes[0])
	return slices.ContainsFunc(batch, func(p *inFlight) bool {
		return slices.ContainsFunc(p.request.Takes, func(t backend.Take) bool { return s.slotID(&t) != first })
	})
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

// finishAll answers the requests of a call. If the requests could not share it, they are sent again one by one. If
// Redis' memory is full, only some of the requests have an answer.
func (q *queue) finishAll(batch []*inFlight, err error) {
	apart := false
	if q.store.crossed(err) && q.store.severalSlots(batch) {
		q.flush(batch, false)
		return
	}
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
			err = q.store.settle(context.Background(), p.at, &p.request)
		}
		q.finish(p, err)
	}
}

// reservationsFailed reports whether a call did nothing, and may have failed because of requests that concern
// reservations: these need more rights, and reservations that can be read.
func reservationsFailed(batch []*inFlight, err error) bool {
	var denied goredis.Error
	return errors.As(err, &denied) && !goredis.HasErrorPrefix(err, partlyWritten) &&
		slices.ContainsFunc(batch, (*inFlight).concernsReservations)
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

// slotCall is a call for the requests of a flush whose counters are in one slot.
type slotCall struct {
	batch    []*inFlight
	requests []*backend.Request
	call     *scriptCall
	cmd      *goredis.ZeroCopyStringCmd
}

// sendSlots settles requests that are sorted by the slots of their counters, with one call for each slot, and sends all
// calls together. Their slots, and key, were found with the terms m. The end of the timeout is not a caller's deadline,
// and must not look like one. A second attempt has its own timeout.
func (q *queue) sendSlots(batch []*inFlight, key string, at int64, m terms) {
	ctx, cancel := q.store.bound(context.Background())
	defer cancel()
	requests, calls := requestsOf(batch), make([]slotCall, 0, len(batch))
	for from, to := 0, 0; from < len(batch); from = to {
		for to = from + 1; to < len(batch) && batch[to].slot == batch[from].slot; to++ {
		}
		f := slotCall{batch: batch[from:to], requests: requests[from:to], call: scriptCalls.Get().(*scriptCall)}
		if err := f.call.pack(m, f.requests...); err != nil {
			f.call.release()
			q.finishAll(f.batch, unsendable{err})
			continue
		}
		calls = append(calls, f)
	}
	moved := q.sendCalls(ctx, q.pipelineOf(ctx, key), calls, at, q.store.cluster)
	if len(moved) > 0 {
		q.sendCalls(ctx, q.store.opts.Client.Pipeline(), moved, at, false)
	}
}

// pipelineOf returns a pipeline to the node of this queue, which owns the slot of a key. The client of the whole
// cluster would look up each slot again. It is used for requests whose node is unknown, and returns the reason.
func (q *queue) pipelineOf(ctx context.Context, key string) goredis.Pipeliner {
	cluster, ok := q.store.opts.Client.(*goredis.ClusterClient)
	if !ok {
		return q.store.opts.Client.Pipeline()
	}
	if q != q.store.queues.common {
		if node, err := cluster.MasterForKey(ctx, key); err == nil {
			return node.Pipeline()
		}
	}
	return cluster.Pipeline()
}

// sendCalls sends calls together, and answers their requests. With again, it returns those that did nothing because
// another node owns their slot.
func (q *queue) sendCalls(ctx context.Context, pipe goredis.Pipeliner, calls []slotCall, at int64,
	again bool) (moved []slotCall) {
	s := q.store
	for i := range calls {
		f := &calls[i]
		f.cmd = f.call.command(ctx, "evalsha", f.call.script.Hash)
		_ = pipe.Process(ctx, f.cmd)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, f := range calls {
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
		case again && isMoved(err):
			moved = append(moved, f)
			continue
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
	return moved
}

// isMoved reports whether a call did nothing because its slot is, or may be, on another node: the node says so, the
// client has forgotten the node, or nobody accepts connections there.
func isMoved(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || goredis.HasErrorPrefix(err, "MOVED") || goredis.HasErrorPrefix(err, "ASK") ||
		errors.Is(err, goredis.ErrClosed)
}

// sendAgain settles requests whose first call did nothing. Keys that contain the time may now be in different slots, so
// with such keys each request is sent alone.
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
