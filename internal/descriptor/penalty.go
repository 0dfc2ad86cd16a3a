package descriptor

import (
	"bytes"
	"time"
)

// MaxPenalty is the longest penalty.
const MaxPenalty = 30 * 24 * time.Hour

// NewPenalty returns the Penalty of a limit whose customers are denied for a time after they have exceeded it. The
// time, in whole seconds and at most MaxPenalty, becomes the window. It also becomes the number of requests, because
// stores notice by that number that a rule has changed.
func NewPenalty(lasts time.Duration) *Limit {
	seconds := lasts / time.Second
	return &Limit{
		Algorithm: Penalties,
		Requests:  uint64(seconds),
		Window:    Window{Unit: Second, Multiplier: uint32(seconds)},
	}
}

// PenaltyText returns how long the penalty of a limit lasts, as rule files write it: "10m". It is empty without a
// penalty.
func (l *Limit) PenaltyText() string {
	if l.Penalty == nil {
		return ""
	}
	return words(l.Penalty.Window.Length())
}

// PenaltyWords describes the penalty for people, after a comma. It is empty without a penalty.
func (l *Limit) PenaltyWords() string {
	if l.Penalty == nil {
		return ""
	}
	return ", penalty " + l.PenaltyText()
}

// A penalty's key is the counter's key followed by one of these words. No counter's key ends with one: it ends with an
// algorithm and a window. Where the limit is not enforced, the penalty has another key, so a penalty that starts there
// is never enforced.
const (
	penaltyWord       = "penalty"
	ShadowPenaltyWord = "penalty_in_shadow"
)

// AppendPenaltyKey appends the key of the penalty for the counter under a key.
func AppendPenaltyKey(dst, counter []byte, shadow bool) []byte {
	dst = append(append(dst, counter...), '|')
	if shadow {
		return append(dst, ShadowPenaltyWord...)
	}
	return append(dst, penaltyWord...)
}

// CutPenaltyKey returns the key of the counter that a penalty's key belongs to, and the word that follows it.
func CutPenaltyKey(key []byte) (counter []byte, word string) {
	at := bytes.LastIndexByte(key, '|')
	if at < 0 {
		return key, ""
	}
	if word = penaltyWord; string(key[at+1:]) != word {
		word = ShadowPenaltyWord
	}
	return key[:at], word
}
