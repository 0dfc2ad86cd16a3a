package assembly

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
)

// Layers stand in front of a store that counts. The fields are in the order of the layers: a take passes the last one
// first. Open and Put set the Store of their options.
type Layers struct {
	Denials *overlimit.Options // options of the cache of final denials; nil without a cache

	// Leases take permits in batches. They are in front of the denial cache: a refund must reach the cache to clear it,
	// and a cached denial must not hide permits that this process holds. Nil charges every take separately.
	Leases *lease.Options

	// Regions returns the layer that counts limits with another home in that region. It stands in front of all stores of
	// this region. Nil with a single region.
	Regions func(here backend.Store) (Regions, error)
}

// Regions is a store that sends limits with another home to that region. Its maker also runs it.
type Regions interface {
	backend.Store
	Cleared() // counters of this region were cleared, by any of its replicas
}

// Chain is a store with its layers. Before Put it has none, and its methods do nothing.
type Chain struct {
	backend.Store                  // first store, the one that decisions ask
	Denials       *overlimit.Cache // nil without a denial cache
	Leases        *lease.Leases    // nil without leases
	regions       Regions
}

// Put puts layers in front of a store.
func (c *Chain) Put(counts backend.Store, l Layers) (err error) {
	c.Store = counts
	if l.Denials != nil {
		l.Denials.Store = c.Store
		c.Denials = overlimit.New(*l.Denials)
		c.Store = c.Denials
	}
	if l.Leases != nil {
		l.Leases.Store = c.Store
		c.Leases = lease.New(*l.Leases)
		c.Store = c.Leases
	}
	if l.Regions != nil {
		if c.regions, err = l.Regions(c.Store); err != nil {
			return err
		}
		c.Store = c.regions
	}
	return nil
}

// Forget drops the layers' denials of a counter to which another replica gave hits back. cleared reports that the
// counter was reset, so its permits are void too.
func (c *Chain) Forget(key []byte, cleared bool) {
	if c.Denials != nil {
		c.Denials.Forget(key)
	}
	if cleared {
		if c.Leases != nil {
			c.Leases.Void(key)
		}
		c.cleared()
	}
}

// ForgetAll is Forget for all counters.
func (c *Chain) ForgetAll(cleared bool) {
	if c.Denials != nil {
		c.Denials.ForgetAll()
	}
	if cleared {
		if c.Leases != nil {
			c.Leases.VoidAll()
		}
		c.cleared()
	}
}

func (c *Chain) cleared() {
	if c.regions != nil {
		c.regions.Cleared()
	}
}

// GaveBack drops the denial of a counter, on this replica and on others where needed.
func (c *Chain) GaveBack(t *backend.Take, o *backend.Outcome) {
	if c.Denials != nil { // without a cache here, the other replicas have none either
		c.Denials.GaveBack(t, o)
	}
}
