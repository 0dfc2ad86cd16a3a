package xds

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

func TestBackoff(t *testing.T) {
	b := Backoff{Initial: 10 * time.Second, Max: 60 * time.Second, Factor: 0.5}
	for failed, want := range []time.Duration{10e9, 15e9, 22.5e9, 33.75e9, 50.625e9, 60e9, 60e9} {
		if got := b.after(failed, 0.5); got != want {
			t.Errorf("after %d failures %s, want %s", failed, got, want)
		}
		if least, most := b.after(failed, 0), b.after(failed, 1); least != want/2 || most != want+want/2 {
			t.Errorf("after %d failures from %s to %s, want half to one and a half of %s", failed, least, most, want)
		}
	}
	if got := b.after(1<<30, 1); got != 90*time.Second {
		t.Errorf("after very many failures %s", got)
	}
	b.Factor = 0
	if b.after(3, 0) != b.after(3, 1) {
		t.Error("without a factor a wait is random")
	}
}

// The server gets at most one rejection per shortest wait, for all contents and times. The next rejection is sent no
// later than the longest wait after the one before. The waits for one version or one content grow.
func TestRejections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rejections{first: time.Second, most: 30 * time.Second}
		now := time.Unix(1e9, 0)
		last, again := time.Time{}, 0
		version, content := "", sum{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "passes")))
			if rapid.Bool().Draw(t, "good") && rapid.Bool().Draw(t, "really good") {
				r.accepted()
				again = 0
				continue
			}
			v, c := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "version"), sum{rapid.Byte().Draw(t, "content") % 2}
			if c != content && (v != version || v == "") {
				again = 0
			}
			again++
			version, content = v, c
			at := now.Add(r.reject(v, c, "bad", now))
			if got, known := r.known(c); !known || got != "bad" {
				t.Fatalf("what is rejected is not known")
			}
			if !last.IsZero() {
				wait := min(time.Second<<max(again-2, 0), 30*time.Second)
				if gap := at.Sub(last); at != now && (gap < wait*3/4 || gap > wait*5/4) {
					t.Fatalf("rejection %d in a row after %s, want about %s", again, gap, wait)
				}
				if at.Sub(last) < 750*time.Millisecond {
					t.Fatalf("rejected twice within %s", at.Sub(last))
				}
			} else if at != now {
				t.Fatal("the first rejection waits")
			}
			now, last = at, at
			r.sent(now)
		}
	})
}

func TestParsePairs(t *testing.T) {
	for text, want := range map[string]string{"": "", " ": "", "a=b": "a>b", " a = b ,c=d=e": "a>b c>d=e", "a=": "a>", "a": "error", "a=b,": "error", "=b": "error"} {
		got := ""
		all, err := ParseMetadata(text)
		for _, k := range []string{"a", "c"} {
			if v, is := all[k]; is {
				got += " " + k + ">" + v
			}
		}
		if err != nil {
			got = " error"
		}
		if want != "" {
			want = " " + want
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for text, ok := range map[string]bool{"authorization:Bearer a:b": true, "X-Key_1.a: v": true, "x": false, "x y:z": false, "grpc-timeout:1s": false, ":path:x": false, "a:\n": true, "a:b\x01c": false, "k-bin:\x01": true} {
		if _, err := ParseHeaders(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"authorization=Bearer secret", "a:b,secret", "a b:secret", "grpc-x:secret", "a:secret\x01"} {
		if _, err := ParseHeaders(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
