package gate

import (
	"crypto/sha256"
	"encoding/base64"
	"unicode/utf8"
)

// MaxValue is the longest value of an entry in bytes.
const MaxValue = 256

// Value returns a value as it is, or the hash of one that is too long or not UTF-8: that could not be sent to a
// service, and a client could make sure that its requests are not decided. A value that was cut would be shared by all
// that begin with it, such as tokens.
func Value(v string) string {
	if len(v) <= MaxValue && utf8.ValidString(v) {
		return v
	}
	return Hash(v)
}

// Hash returns the beginning of the SHA-256 of a value, as text.
func Hash(v string) string {
	sum := sha256.Sum256([]byte(v))
	return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:18])
}
