package simulate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
)

// across returns the constructor of the store that counts across regions. The store runs until ctx ends. Nil means that
// limits count in each region.
func (r *replica) across(ctx context.Context) func(backend.Store) (assembly.Regions, error) {
	if r.f.setup.regions == 1 || r.f.aside {
		return nil
	}
	here := r.region()
	return func(counters backend.Store) (_ assembly.Regions, err error) {
		r.regions, err = regions.New(regions.Options{
			Store: counters, Peers: &wan{r.f, here}, Region: names[here], Regions: names[:r.f.setup.regions], Denials: r.f.denials, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			go func() { _ = r.regions.Run(ctx) }()
		}
		return r.regions, err
	}
}

// region is the index of the replica's region.
func (r *replica) region() int { return r.index % r.f.setup.regions }

// wan is the connection of a region to the others. Messages are slow, and some are lost.
type wan struct {
	f    *fleet
	from int
}

// farthest is the longest time of a message between two regions, one way.
const farthest = 40 * time.Millisecond

// Ask implements regions.Peers. It forwards queries to a replica of another region, and returns the answers.
func (w *wan) Ask(ctx context.Context, to string, queries []regions.Query, heard func(regions.State), answered func(int, *regions.Answer)) error {
	f := w.f
	random := f.random("wan", w.from, to)
	pause := func() bool {
		time.Sleep(farthest/4 + time.Duration(random.Int64N(int64(farthest*3/4)))) //nolint:forbidigo // virtual time
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
	state := r.regions.State()
	state.Replicas = f.setup.replicas
	answers := make([]*regions.Answer, len(queries))
	var settled sync.WaitGroup
	for i := range queries {
		settled.Add(1)
		r.regions.Answer(ctx, names[w.from], &queries[i], func(a *regions.Answer) { answers[i] = a; settled.Done() })
	}
	settled.Wait()
	if !pause() {
		<-ctx.Done()
		return errLost
	}
	heard(state)
	for i, a := range answers {
		answered(i, a)
	}
	return nil
}
