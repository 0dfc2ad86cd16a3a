package reservation

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"strings"
	"sync"
	"sync/atomic"
)

// Nonce makes an id unique. It also identifies the reserved hits in the store.
type Nonce [16]byte

// NewNonce returns a random nonce that nobody can guess.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// Key signs ids. Replicas with the same key accept each other's ids.
type Key [32]byte

// NewKey returns a random key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // it never fails
	return k
}

// KeyFrom derives a key from a secret text of any length.
func KeyFrom(secret string) Key {
	return sha256.Sum256([]byte("ratelimitd reservation ids\x00" + secret))
}

// Bounds of an id.
const (
	MaxSize = 1 << 20 // longest accepted id, in bytes
	// most bytes for such an id: base64 encodes three bytes as four letters
	MaxBytes = MaxSize/4*3 - bytesAt
)

// Errors of a Signer.
var (
	// ErrID is returned for a text that is not the id of a reservation, or that was signed with another key.
	ErrID = errors.New("not the id of a reservation, or signed with another key: replicas accept each other's ids if " +
		"RATELIMITD_RESERVATION_KEY is equal, or if they share a Redis")
	// ErrNoKey is returned while the key is not known yet.
	ErrNoKey = errors.New("the key that signs ids of reservations is not known yet: Redis has not given it; " +
		"repeat the call")
)

// The parts of an id, before its bytes: version, nonce and signature.
const (
	version  = 1
	nonceAt  = 1
	macAt    = nonceAt + len(Nonce{})
	macSize  = 16
	bytesAt  = macAt + macSize
	poolable = 4 << 10 // bytes
)

// Signer signs ids and checks them.
type Signer struct {
	signing atomic.Pointer[signing]
	asked   atomic.Bool // a call needed the key before it was known
}

type signing struct {
	key      Key
	hashes   sync.Pool // holds *hashing
	previous *signing  // previous key, whose ids are still accepted; it has no previous one itself
}

// hashing is the working memory for one signature.
type hashing struct {
	mac   hash.Hash
	sum   [sha256.Size]byte
	bytes []byte
}

// NewSigner returns a signer without a key.
func NewSigner() *Signer { return new(Signer) }

// SetKey sets the key for new ids. Ids of the previous key are still accepted. It must not be called concurrently with
// itself.
func (s *Signer) SetKey(k Key) {
	now := s.signing.Load()
	if now != nil && now.key == k {
		return
	}
	next := &signing{key: k}
	next.hashes.New = func() any { return &hashing{mac: hmac.New(sha256.New, k[:])} }
	if now != nil {
		next.previous = &signing{key: now.key}
		next.previous.hashes.New = now.hashes.New
	}
	s.signing.Store(next)
}

// Ready reports whether the signer has a key.
func (s *Signer) Ready() bool { return s.keyed() != nil }

// keyed returns the current key, or nil while it is unknown.
func (s *Signer) keyed() *signing {
	k := s.signing.Load()
	if k == nil {
		s.asked.Store(true)
	}
	return k
}

// Sign returns the id of a reservation.
func (s *Signer) Sign(n Nonce, bytes []byte) (string, error) {
	k := s.keyed()
	if k == nil {
		return "", ErrNoKey
	}
	h := k.hashes.Get().(*hashing)
	defer k.free(h)
	h.bytes = append(append(h.bytes[:0], version), n[:]...)
	mac := h.sign(n[:], bytes)
	h.bytes = append(append(h.bytes, mac...), bytes...)
	return base64.RawURLEncoding.EncodeToString(h.bytes), nil
}

// Open checks an id and returns its nonce and its bytes as a string.
func (s *Signer) Open(id string) (n Nonce, bytes string, err error) {
	k := s.keyed()
	if k == nil {
		return n, "", ErrNoKey
	}
	if len(id) > MaxSize || strings.ContainsAny(id, "\r\n") { // the decoder would skip these
		return n, "", ErrID
	}
	if n, bytes, err = k.open(id); err != nil && k.previous != nil {
		n, bytes, err = k.previous.open(id)
	}
	return n, bytes, err
}

func (k *signing) open(id string) (n Nonce, bytes string, err error) {
	h := k.hashes.Get().(*hashing)
	defer k.free(h)
	h.bytes, err = base64.RawURLEncoding.Strict().AppendDecode(h.bytes[:0], []byte(id))
	if err != nil || len(h.bytes) < bytesAt || h.bytes[0] != version {
		return n, "", ErrID
	}
	copy(n[:], h.bytes[nonceAt:])
	if !hmac.Equal(h.sign(n[:], h.bytes[bytesAt:]), h.bytes[macAt:bytesAt]) {
		return Nonce{}, "", ErrID
	}
	return n, string(h.bytes[bytesAt:]), nil
}

// sign returns the signature, which is valid until the next call.
func (h *hashing) sign(nonce, bytes []byte) []byte {
	h.mac.Reset()
	h.mac.Write([]byte{version})
	h.mac.Write(nonce)
	h.mac.Write(bytes)
	return h.mac.Sum(h.sum[:0])[:macSize]
}

func (k *signing) free(h *hashing) {
	if cap(h.bytes) <= poolable {
		k.hashes.Put(h)
	}
}
