package override

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// keptAfterEnd is how long an override that has ended stays in its source, so that people can look it up.
	keptAfterEnd = 24 * time.Hour

	sweepEvery = time.Minute
	sweeper    = "ratelimitd" // the author of a removal
)

// Shared is a source that several replicas write to.
type Shared interface {
	Source

	// Turn reports whether this replica is the one that may do a shared job now. No other replica that shares the source
	// may do it during span.
	Turn(ctx context.Context, span time.Duration) (bool, error)
}

// Sweeper removes overrides that ended long ago from their source. They count towards MaxOverrides, and use memory in
// every replica.
type Sweeper struct {
	Source  Shared
	InForce func() *Set  // this replica's current set of overrides
	Log     *slog.Logger // default slog.Default()
}

// Run sweeps until ctx ends. Of all replicas that share a source, one sweeps at a time.
func (s *Sweeper) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			_, err := s.Sweep(ctx, now)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil && !failing {
				s.log().Warn("overrides that have ended cannot be removed", "error", err)
			}
			failing = err != nil
		}
	}
}

func (s *Sweeper) log() *slog.Logger {
	if s.Log == nil {
		return slog.Default()
	}
	return s.Log
}

// Sweep removes overrides that ended keptAfterEnd before now or earlier, at most MaxEdits of them, unless another
// replica has just done so. It returns how many it removed. Each removal is logged as one by an operator is, and it is
// in the history.
func (s *Sweeper) Sweep(ctx context.Context, now time.Time) (removed int, err error) {
	before := now.Add(-keptAfterEnd).Unix()
	due := s.InForce().Ended(before, MaxEdits)
	if len(due) == 0 {
		return 0, nil
	}
	if turn, err := s.Source.Turn(ctx, sweepEvery-5*time.Second); err != nil || !turn {
		return 0, err //nolint:wrapcheck // the source has wrapped it
	}
	records, err := s.Source.Get(ctx, due)
	if err != nil {
		return 0, err //nolint:wrapcheck // the source has wrapped it
	}
	var edits []Edit
	var gone []*Override
	for _, o := range records {
		if o == nil || o.ExpiresAt == 0 || o.ExpiresAt > before {
			continue // somebody has changed it
		}
		ended := time.Unix(o.ExpiresAt, 0).UTC().Format(time.RFC3339)
		edits = append(edits, Edit{Override: Override{Identity: o.Identity, Reason: "it ended at " + ended}, Remove: true,
			Expect: &o.Version})
		gone = append(gone, o)
	}
	written, err := s.Source.Write(ctx, sweeper, edits)
	if _, changed := errors.AsType[*ConflictError](err); changed {
		return 0, nil // nothing is removed now; the next sweep removes the others
	}
	if err != nil {
		return 0, fmt.Errorf("remove overrides that have ended: %w", err)
	}
	for i, o := range gone {
		attrs := append([]slog.Attr{slog.String("by", sweeper)}, o.Attrs()...)
		s.log().LogAttrs(ctx, slog.LevelWarn, "change of an override",
			append(attrs, slog.String("before", o.Words()), slog.String("after", "none"),
				slog.String("reason", edits[i].Reason), slog.Int64("version", written[i].Version),
				slog.String("result", "done"))...)
	}
	return len(gone), nil
}
