package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

const maxProcesses = 1000 // most replicas that are counted: the list is one value in Redis

// Heartbeat writes the name of a replica, in hexadecimal digits, to the list of replicas that share the Redis, or takes
// it off the list if the replica leaves. It returns how many there are. A replica that was killed drops off the list
// after lives, by Redis' clock.
func (s *Store) Heartbeat(ctx context.Context, key, name string, lives time.Duration, leaves bool) (int, error) {
	ctx = redisconn.Probe(ctx)
	at := uint64(0) // Redis' clock decides
	if s.CallerClock() {
		at = uint64(time.Now().UnixMicro())
	}
	alive := "1"
	if leaves {
		alive = "0"
	}
	terms := packedArg(binary.LittleEndian.AppendUint64(nil, at))
	client, script, keys := s.opts.Client, scripts.Replicas(), []string{key}
	args := []any{&terms, name, lives.Milliseconds(), alive, maxProcesses}
	n, err := client.EvalSha(ctx, script.Hash, keys, args...).Int()
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		n, err = client.Eval(ctx, script.Text, keys, args...).Int()
	}
	if err != nil && goredis.HasErrorPrefix(err, noTime) {
		s.useCallerClock(err)
		return s.Heartbeat(ctx, key, name, lives, leaves) // this time by this replica's clock
	}
	if err != nil {
		return 0, fmt.Errorf("count the replicas that share Redis: %w", err)
	}
	return n, nil
}
