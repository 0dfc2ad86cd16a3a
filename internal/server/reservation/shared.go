package reservation

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// SharedKey is a key that all replicas of a Redis find there. The first one creates it.
type SharedKey struct {
	Client goredis.UniversalClient
	Key    string // key in Redis
	Signer *Signer
	Log    *slog.Logger

	// Needed reports whether ids are needed. It is called once a second until it returns true. Before that, Redis is asked
	// only if a call signs or opens an id.
	Needed func() bool
}

const (
	askAgain = time.Second // interval while Redis does not answer
	// interval in which a Redis that has lost the key gets it back, and a replica with another key notices
	lookAgain  = time.Minute
	answerTime = time.Second
)

// Run keeps the signer's key equal to the one in Redis until ctx ends. It returns nil.
func (s *SharedKey) Run(ctx context.Context) error {
	for !s.Needed() && !s.Signer.asked.Load() {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askAgain):
		}
	}
	mine, logged := NewKey(), ""
	for {
		next := lookAgain
		key, err := s.share(ctx, mine)
		switch {
		case err == nil:
			mine, logged = key, ""
			s.Signer.SetKey(key)
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the service stops
		default:
			next = askAgain
			_, short := errors.AsType[*shortKeyError](err)
			// other code logs that Redis does not answer
			if answer := goredis.Error(nil); (short || errors.As(err, &answer)) && logged != err.Error() {
				logged = err.Error()
				s.Log.Warn("this replica shares no key for the IDs of reservations; docs/reference/redis-keys.md has the rights "+
					"that the user of Redis needs", "key", s.Key, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(next):
		}
	}
}

// shortKeyError is the error for a text in Redis that is shorter than a key.
type shortKeyError struct {
	key  string // key in Redis
	size int
}

func (e *shortKeyError) Error() string {
	return fmt.Sprintf("%q in Redis has %d bytes, and a key has at least %d: delete it, and a replica writes a new one",
		e.key, e.size, 2*len(Key{}))
}

// share writes a key unless there is one, and returns the stored one.
func (s *SharedKey) share(ctx context.Context, mine Key) (Key, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := s.Client.SetNX(ctx, s.Key, hex.EncodeToString(mine[:]), 0).Err(); err != nil {
		return Key{}, fmt.Errorf("share a key: %w", err)
	}
	text, err := s.Client.Get(ctx, s.Key).Result()
	if err != nil {
		return Key{}, fmt.Errorf("read the shared key: %w", err)
	}
	var key Key
	if len(text) < 2*len(key) { // a short text could be guessed, and used to sign ids
		return Key{}, &shortKeyError{s.Key, len(text)}
	}
	if n, err := hex.Decode(key[:], []byte(text)[:2*len(key)]); err != nil || len(text) != 2*n {
		return KeyFrom(text), nil // an operator wrote it
	}
	return key, nil
}
