package gate

import (
	"crypto/sha256"
	"encoding/base64"
	"unicode/utf8"
)

// MaxValue is the longest value of an entry in bytes.
const MaxValue = 256

// Value returns a value unchanged, or the hash of one that is too long or not UTF-8. Such a value could not be sent to
// a service, so a client could prevent the decision of its requests. Cutting the value would put all tokens with the
// same prefix under one counter.
func Value(v string) string {
	if len(v) <= MaxValue && utf8.ValidString(v) {
		return v
	}
	return Hash(v)
}

// Hash returns a prefix of the SHA-256 of a value, as text.
func Hash(v string) string {
	sum := sha256.Sum256([]byte(v))
	return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:18])
}
