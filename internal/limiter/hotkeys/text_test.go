package hotkeys

import (
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestPrintable(t *testing.T) {
	for key, want := range map[string]string{
		"":                     "",
		`d|k=v|f60`:            `d|k=v|f60`,
		"한글 and ünïcode":       "한글 and ünïcode",
		"\x1b[31m\r\n\t\x00":   `\x1b[31m\r\n\t\x00`,
		"\xff\xc3":             `\xff\xc3`,
		"\u202eevil\u200b":     `\u202eevil\u200b`,
		"\U000e0001":           `\U000e0001`,
		`it's "quoted" \\ \|`:  `it's "quoted" \\ \|`,
		"\ufffd is a rune too": "\ufffd is a rune too",
	} {
		if got := Printable(key); got != want {
			t.Errorf("%q is shown as %s, want %s", key, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("d|k=\x1b[31m|f60")
	f.Add("\xff\u2028'")
	f.Fuzz(func(t *testing.T, key string) {
		shown := Printable(key)
		for _, r := range shown {
			if !strconv.IsPrint(r) {
				t.Errorf("%q is shown with %U", key, r)
			}
		}
		if !utf8.ValidString(shown) || len(shown) > 10*len(key) {
			t.Errorf("%q is shown as %q", key, shown)
		}
	})
}

// kept returns the text that a tracker keeps of a key.
func kept(key string) (text string, cut bool) {
	tr, r := newRule(Options{})
	r.use(key, 1, false)
	k := tr.Top(after(1), Query{}).Used[0]
	return k.Key, k.Cut
}

func TestLongKeysAreCut(t *testing.T) {
	for _, c := range []struct{ key, want string }{
		{strings.Repeat("x", textSize), strings.Repeat("x", textSize)},
		{strings.Repeat("x", textSize) + "|f60", strings.Repeat("x", textHead) + cutMark + strings.Repeat("x", textSize-textHead-len(cutMark)-4) + "|f60"},
		// No half of an escape before the mark: it would make another one of it.
		{strings.Repeat(`\\`, 300), strings.Repeat(`\`, textHead) + cutMark + strings.Repeat(`\`, textSize-textHead-len(cutMark))},
		{"x" + strings.Repeat(`\\`, 300), "x" + strings.Repeat(`\`, textHead-2) + cutMark + strings.Repeat(`\`, textSize-textHead+1-len(cutMark))},
	} {
		if got, cut := kept(c.key); got != c.want || cut != (len(c.key) > textSize) {
			t.Errorf("%s is kept as %s, cut: %t", c.key, got, cut)
		}
	}
}

// The key of a counter that has a hash for its entries is kept whole.
func TestHashedKeysAreNotCut(t *testing.T) {
	zone, err := time.LoadLocation("America/Argentina/ComodRivadavia")
	if err != nil {
		t.Fatal(err)
	}
	limit := &descriptor.Limit{Window: descriptor.Window{Unit: descriptor.Year, Location: zone}}
	key := descriptor.KeyBuilder{}.AppendKey(nil, "d", []descriptor.Entry{{Key: "k", Value: strings.Repeat("v", 5000)}}, nil, limit)
	if got, cut := kept(string(key)); cut || got != string(key) {
		t.Errorf("%s is kept as %s", key, got)
	}
}
