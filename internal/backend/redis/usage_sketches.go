package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// UsageSketches keeps the history of counters in Redis, where any number of processes add to it. A minute is a string of cells of 32
// bits, which expires a little more than an hour later.
type UsageSketches struct {
	Client goredis.UniversalClient // required
	Prefix string                  // of the keys; the number of the minute follows. With a hash tag all minutes are in one slot
}

const (
	maxCellsAtOnce = 250 // of one command: it takes Redis a quarter of a millisecond
	minuteLasts    = 65 * time.Minute
)

// AddTo adds hits[i] to cells[i] of a minute.
func (u *UsageSketches) AddTo(ctx context.Context, minute int64, cells, hits []uint32) error {
	key, pipe := u.key(minute), u.Client.Pipeline()
	for from := 0; from < len(cells); from += maxCellsAtOnce {
		to := min(from+maxCellsAtOnce, len(cells))
		args := make([]any, 0, 2+4*(to-from))
		args = append(args, "OVERFLOW", "SAT")
		for i := from; i < to; i++ {
			args = append(args, "INCRBY", "u32", cellOffset(cells[i]), hits[i])
		}
		pipe.BitField(ctx, key, args...)
	}
	pipe.Expire(ctx, key, minuteLasts)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("write the history of counters: %w", err)
	}
	return nil
}

// Read returns the values of some cells, in their order, for each of count minutes from first.
func (u *UsageSketches) Read(ctx context.Context, first int64, count int, cells []uint32) ([][]uint32, error) {
	args := make([]any, 0, 3*len(cells))
	for _, cell := range cells {
		args = append(args, "GET", "u32", cellOffset(cell))
	}
	commands := make([]*goredis.IntSliceCmd, count)
	pipe := u.Client.Pipeline()
	for i := range commands {
		commands[i] = pipe.BitField(ctx, u.key(first+int64(i)), args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the history of counters: %w", err)
	}
	all := make([][]uint32, count)
	for i, c := range commands {
		for _, value := range c.Val() {
			all[i] = append(all[i], uint32(value)) //nolint:gosec // read as 32 bits
		}
		if len(all[i]) != len(cells) {
			return nil, fmt.Errorf("read the history of counters: %d values for %d cells", len(all[i]), len(cells))
		}
	}
	return all, nil
}

func (u *UsageSketches) key(minute int64) string { return u.Prefix + strconv.FormatInt(minute, 10) }

// cellOffset is the offset of a cell: # counts in cells, not in bits.
func cellOffset(cell uint32) string { return "#" + strconv.FormatUint(uint64(cell), 10) }
