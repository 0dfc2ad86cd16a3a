package terminal

import (
	"strings"
	"testing"
	"time"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                       "0s",
		1:                                       "1us",
		430 * time.Microsecond:                  "430us",
		9999 * time.Microsecond:                 "9.999ms",
		16200 * time.Microsecond:                "17ms",
		2500 * time.Millisecond:                 "2.5s",
		12340 * time.Millisecond:                "12.4s",
		59950 * time.Millisecond:                "1m",
		59960 * time.Millisecond:                "1m",
		time.Minute:                             "1m",
		200 * time.Second:                       "3m20s",
		59*time.Minute + 59001*time.Millisecond: "1h",
		36 * time.Hour:                          "1d12h",
		-time.Second:                            "-1s",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

func TestWriter(t *testing.T) {
	var plain, colored strings.Builder
	for w, to := range map[*Writer]*strings.Builder{NewWriter(&plain, false): &plain, NewWriter(&colored, true): &colored} {
		w.Line("%s %s   ", w.Paint(Red, "over"), w.Paint(Plain, Clean("a\x1b[2Jb")))
		if err := w.Flush(); err != nil || to.Len() == 0 {
			t.Fatal(err)
		}
	}
	if plain.String() != "over a\ufffd[2Jb\n" || colored.String() != "\x1b[31mover\x1b[0m a\ufffd[2Jb\n" {
		t.Errorf("%q %q", plain.String(), colored.String())
	}
	if Count(1, "request")+Count(2, "request") != "1 request2 requests" {
		t.Error(Count(1, "request"), Count(2, "request"))
	}
}
