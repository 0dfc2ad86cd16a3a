package simulate

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
)

// store returns what the replica counts in: leases, and if there are several regions, what counts across them in front.
func (r *replica) store(ctx context.Context) backend.Store {
	if r.f.setup.regions == 1 {
		return r.leases
	}
	here := r.index % r.f.setup.regions
	s, err := regions.New(regions.Options{
		Store: r.leases, Records: &records{r, r.f.records[here]}, Peers: &wan{r.f, here}, Region: names[here], Regions: names[:r.f.setup.regions], Epoch: 1,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	r.regions = s
	go func() { _ = s.Run(ctx) }()
	return s
}

// wan is how a region reaches the others. Messages take long, are lost, and arrive twice.
type wan struct {
	f    *fleet
	from int
}

// call carries a message to a replica of another region, and its answer back.
func (w *wan) call(ctx context.Context, to string, deliver func(*replica) error) error {
	f := w.f
	random := f.random("wan", w.from, to)
	pause := func() bool {
		time.Sleep(10*time.Millisecond + time.Duration(random.Int64N(int64(30*time.Millisecond)))) //nolint:forbidigo // virtual time
		return random.Float64() >= f.lost
	}
	home := 0
	for names[home] != to {
		home++
	}
	there := func() (*replica, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		var up []*replica
		for i := home; i < len(f.replicas); i += f.setup.regions {
			up = append(up, f.replicas[i])
		}
		now := time.Since(f.began)
		return up[random.IntN(len(up))], now >= f.cut[home] && now >= f.cut[w.from]
	}
	r, ok := there()
	if !pause() || !ok {
		<-ctx.Done()
		return errLost
	}
	err := deliver(r)
	if err == nil && random.Float64() < f.lost { // it arrives twice
		other, _ := there()
		_ = deliver(other)
	}
	if !pause() {
		<-ctx.Done()
		return errLost
	}
	return err
}

// Exchange implements regions.Peers.
func (w *wan) Exchange(ctx context.Context, home string, epoch uint64, queries []regions.Query) (replies []regions.Reply, err error) {
	err = w.call(ctx, home, func(r *replica) (err error) {
		replies, err = r.regions.Answer(ctx, names[w.from], epoch, queries)
		return err
	})
	return replies, err
}

// Consent implements regions.Peers.
func (w *wan) Consent(ctx context.Context, to string, e *region.Epoch) (ok bool, err error) {
	err = w.call(ctx, to, func(r *replica) (err error) {
		ok, err = r.regions.Consent(ctx, names[w.from], e)
		return err
	})
	return ok, err
}

// records are those of a region's Redis, as a replica reaches them.
type records struct {
	r *replica
	backend.Records
}

// Start implements backend.Records.
func (r *records) Start(ctx context.Context, now time.Time, b *backend.Batch, q *backend.Request, done func(error)) (settled bool, err error) {
	go func() {
		f := r.r.f
		random := f.random(r.r.index, string(q.Takes[0].Key), "take")
		pause := func() bool {
			time.Sleep(10*time.Microsecond + time.Duration(random.Int64N(int64(f.trip)))) //nolint:forbidigo // virtual time
			return random.Float64() >= f.lost
		}
		if !pause() {
			done(errLost)
			return
		}
		_, err := r.Records.Start(ctx, now, b, q, done)
		if !pause() {
			err = errLost
		}
		done(err)
	}()
	return false, nil
}

// Change implements backend.Records.
func (r *records) Change(c *backend.RecordChange) {
	go func() {
		f := r.r.f
		random := f.random(r.r.index, string(c.Key), c.Kind)
		pause := func() bool {
			time.Sleep(10*time.Microsecond + time.Duration(random.Int64N(int64(f.trip)))) //nolint:forbidigo // virtual time
			return random.Float64() >= f.lost
		}
		if !pause() {
			c.Err = errLost
			c.Done()
			return
		}
		own := *c
		if random.Float64() < f.forgets {
			own.Value = nil
		}
		done := make(chan struct{})
		own.Done = func() { close(done) }
		r.Records.Change(&own)
		<-done
		own.Present = append([]byte(nil), own.Present...)
		if pause() {
			c.Err, c.Result, c.At, c.Present, c.Counted = own.Err, own.Result, own.At, own.Present, own.Counted
		} else {
			c.Err = errLost
		}
		c.Done()
	}()
}
