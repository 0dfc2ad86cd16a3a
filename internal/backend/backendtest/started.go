package backendtest

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Started returns a store that takes with Start and waits for the answer. So a suite shows that Start does what Take does.
func Started(s backend.Starter) backend.Store { return started{s} }

type started struct{ backend.Starter }

// Take implements backend.Store.
func (s started) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	answer := make(chan error, 1)
	settled, err := s.Start(ctx, now, nil, r, func(err error) { answer <- err })
	if settled {
		return err
	}
	return <-answer
}
