package main

import (
	"context"
	"fmt"
)

const (
	roomLimit  = 10     // per hour
	roomKeys   = 100000 // keys that ask
	roomPlaces = 65536  // keys that a store with a bound may hold; throttled's documentation has this number
	roomPasses = 20     // requests of each key
)

// crowd is what a library admitted of more keys than it has places for.
type crowd struct {
	name     string
	admitted int // requests above the limit of their key
	refused  int // requests within the limit of their key
}

// room asks for all keys in turn, again and again.
func (b *bench) room(ctx context.Context, libraries []library) ([]crowd, error) {
	keys := keyNames(roomKeys)
	var all []crowd
	for _, l := range libraries {
		if l.paces {
			continue
		}
		open, err := l.open(setup{limit: limit{requests: roomLimit, unit: "hour"}, room: roomPlaces})
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", l.name, err)
		}
		admitted := make([]int, len(keys))
		for range roomPasses {
			for i, key := range keys {
				ok, err := open.decide(ctx, key)
				if err != nil {
					return nil, fmt.Errorf("ask %s: %w", l.name, err)
				}
				if ok {
					admitted[i]++
				}
			}
		}
		if err := open.close(); err != nil {
			return nil, fmt.Errorf("close %s: %w", l.name, err)
		}
		c := crowd{name: l.name}
		for _, n := range admitted {
			c.admitted += max(n-roomLimit, 0)
			c.refused += max(roomLimit-n, 0)
		}
		all = append(all, c)
	}
	return all, nil
}
