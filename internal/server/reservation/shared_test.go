package reservation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Replicas that share a Redis share a key. A Redis that has lost the key gets it back.
func TestSharedKey(t *testing.T) {
	client := redistest.Start(t).Client(t)
	a := SharedKey{Client: client, Key: "p:{reservations}:key", Signer: NewSigner()}
	mine, other := NewKey(), NewKey()
	for _, k := range []Key{mine, other} {
		if got, err := a.share(t.Context(), k); err != nil || got != mine {
			t.Fatalf("%x, %v; want that of the first process, %x", got, err, mine)
		}
	}
	client.FlushAll(t.Context())
	if got, err := a.share(t.Context(), mine); err != nil || got != mine {
		t.Errorf("after a loss: %x, %v", got, err)
	}
	secret := strings.Repeat("an operator's secret", 4)
	client.Set(t.Context(), a.Key, secret, 0)
	if got, err := a.share(t.Context(), mine); err != nil || got != KeyFrom(secret) {
		t.Errorf("another text: %x, %v", got, err)
	}
}

// A replica that starts before its Redis gets a key later.
func TestSharedKeyWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	server.Stop(t)
	a := SharedKey{Client: client, Key: "k", Signer: NewSigner()}
	if _, err := a.share(t.Context(), NewKey()); err == nil {
		t.Fatal("a key from a Redis that does not run")
	}
	if _, err := a.Signer.Sign(NewNonce(), nil); err == nil {
		t.Error("an id without a key")
	}
}

// Redis is asked for the key when a call needs it, even if no rule does.
func TestSharedKeyThatNoRuleNeeds(t *testing.T) {
	a := SharedKey{
		Client: redistest.Start(t).Client(t), Key: "k", Signer: NewSigner(),
		Needed: func() bool { return false }, Log: slog.New(slog.DiscardHandler),
	}
	if _, _, err := a.Signer.Open("the id of another process"); !errors.Is(err, ErrNoKey) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	redistest.Eventually(t, "the key is known", func(context.Context) error {
		_, err := a.Signer.Sign(NewNonce(), nil)
		return err
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A text that is too short for a key is not used: with a guess of it, anybody could sign ids. The log explains the
// remedy.
func TestSharedKeyThatIsTooShort(t *testing.T) {
	client := redistest.Start(t).Client(t)
	for _, text := range []string{"", "secret", strings.Repeat("0", 63)} {
		var log bytes.Buffer
		a := SharedKey{Client: client, Key: "k", Signer: NewSigner(), Needed: func() bool { return true }}
		client.Set(t.Context(), a.Key, text, 0)
		ctx, cancel := context.WithCancel(t.Context())
		a.Log = slog.New(slog.NewTextHandler(writing(func(line []byte) (int, error) {
			cancel()
			return log.Write(line)
		}), nil))
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
		if want := fmt.Sprintf("has %d bytes, and a key has at least 64", len(text)); !strings.Contains(log.String(), want) || a.Signer.Ready() {
			t.Errorf("%q: ready %v, %s", text, a.Signer.Ready(), &log)
		}
		cancel()
	}
}

type writing func([]byte) (int, error)

func (w writing) Write(line []byte) (int, error) { return w(line) }
