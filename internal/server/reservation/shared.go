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

// SharedKey is a key that all replicas of a Redis find there. The first one makes it.
type SharedKey struct {
	Client goredis.UniversalClient
	Key    string // of Redis
	Signer *Signer
	Log    *slog.Logger

	// Needed reports whether ids are needed. It is asked once a second until it returns true. Before, Redis is asked only
	// if somebody wants to sign or open an id.
	Needed func() bool
}

const (
	askAgain   = time.Second // while Redis does not answer
	lookAgain  = time.Minute // a Redis that has lost the key gets it again, and a replica that has another one learns it
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
			// that Redis does not answer is logged elsewhere
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

// shortKeyError reports that somebody has written a text that is shorter than a key.
type shortKeyError struct {
	key  string // of Redis
	size int
}

func (e *shortKeyError) Error() string {
	return fmt.Sprintf("%q in Redis has %d bytes, and a key has at least %d: delete it, and a replica writes a new one",
		e.key, e.size, 2*len(Key{}))
}

// share writes a key unless there is one, and returns the one that is there.
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
	if len(text) < 2*len(key) { // anybody could guess it, and sign ids with it
		return Key{}, &shortKeyError{s.Key, len(text)}
	}
	if n, err := hex.Decode(key[:], []byte(text)[:2*len(key)]); err != nil || len(text) != 2*n {
		return KeyFrom(text), nil // somebody wrote it
	}
	return key, nil
}
