package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

func TestJSONHasTheFieldsOfTheReference(t *testing.T) {
	var b bytes.Buffer
	log, err := logging.New(&b, logging.Options{Format: "JSON"})
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	log.Warn("active rules", "rules", 3, "error", errors.New("broken"), "after", 1500*time.Millisecond, slog.Group("file", "msg", "inner", "level", 7))
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	stamp, _ := got["@timestamp"].(string)
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil || at.Before(before.Truncate(time.Microsecond)) || time.Since(at) < 0 {
		t.Errorf("@timestamp %q, %v", stamp, err)
	}
	delete(got, "@timestamp")
	want := map[string]any{
		"level": "warning", "@message": "active rules", "rules": 3.0, "error": "broken", "after": "1.5s",
		"file": map[string]any{"msg": "inner", "level": 7.0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if strings.Count(b.String(), "\n") != 1 || !strings.HasSuffix(b.String(), "}\n") {
		t.Errorf("not one line: %q", b.String())
	}
}

func TestEveryLevelHasAName(t *testing.T) {
	var b bytes.Buffer
	level := new(logging.Level)
	if err := level.Set("debug"); err != nil {
		t.Fatal(err)
	}
	log, err := logging.New(&b, logging.Options{Format: "json", Level: level})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError} {
		b.Reset()
		log.Log(t.Context(), at, "x")
		if want := `"level":"` + name + `"`; !strings.Contains(b.String(), want) {
			t.Errorf("%s does not have %s", b.String(), want)
		}
	}
}

func TestTextIsTheDefault(t *testing.T) {
	var b bytes.Buffer
	log, err := logging.New(&b, logging.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not said")
	log.Info("said", "n", 1)
	if got := b.String(); !strings.Contains(got, "level=INFO msg=said n=1") || strings.Contains(got, "not said") {
		t.Errorf("got %q", got)
	}
}

func TestLevelChangesWhileLoggersAreInUse(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		var level logging.Level
		log, err := logging.New(&b, logging.Options{Format: format, Level: &level})
		if err != nil {
			t.Fatal(err)
		}
		log = log.With("derived", true)
		said := func() bool {
			b.Reset()
			log.Debug("a detail")
			return b.Len() > 0
		}
		for _, step := range []struct {
			name, called string
			debug        bool
		}{
			{"debug", "debug", true}, {"INFO", "info", false}, {"trace", "debug", true}, {"Warning", "warning", false},
			{"warn", "warning", false}, {"error", "error", false}, {"fatal", "error", false}, {"panic", "error", false},
		} {
			if err := level.Set(step.name); err != nil {
				t.Fatal(err)
			}
			if got := level.String(); got != step.called || said() != step.debug {
				t.Errorf("%s: after %s the level is %s, and debug is written: %v", format, step.name, got, said())
			}
		}
		if err := level.Set("loud"); err == nil || !strings.Contains(err.Error(), "loud") || !strings.Contains(err.Error(), "warning") {
			t.Errorf("an unknown level: %v", err)
		}
		if got := level.String(); got != "error" {
			t.Errorf("an unknown level changed the level to %s", got)
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	if _, err := logging.New(&bytes.Buffer{}, logging.Options{Format: "xml"}); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("got %v", err)
	}
}

// A record has at most 16 KiB, whatever is logged, and is still valid JSON. Short values stay.
func TestRecordsAreBounded(t *testing.T) {
	long := strings.Repeat("\x00\u00e9", 100_000)
	var many []any
	for i := range 3_000 {
		many = append(many, fmt.Sprint("k", i), i)
	}
	for name, of := range map[string]struct {
		with, args []any
		message    string
		want       string // stays
	}{
		"text":         {args: []any{"short", 7, "long", long}, message: "m", want: "short"},
		"error":        {args: []any{"short", 7, "error", errors.New(long)}, message: "m", want: "short"},
		"list":         {args: []any{"list", strings.Split(strings.Repeat("word ", 100_000), " "), "short", 7}, message: "m", want: "short"},
		"struct":       {args: []any{"it", struct{ A, B string }{long, long}, "short", 7}, message: "m", want: "short"},
		"group":        {args: []any{slog.Group("g", "long", long, "inner", slog.GroupValue(slog.String("long", long))), "short", 7}, message: "m", want: "short"},
		"message":      {args: []any{"short", 7}, message: long, want: "short"},
		"key":          {args: []any{long, 1, "short", 7}, message: "m", want: "short"},
		"of a logger":  {with: []any{"long", long}, args: []any{"short", 7}, message: "m", want: "short"},
		"many":         {args: many, message: "m", want: "attributes_left_out"},
		"many of some": {with: many, args: []any{"short", 7}, message: "m", want: "attributes_left_out"},
	} {
		for _, format := range []string{"text", "json"} {
			var b bytes.Buffer
			log, err := logging.New(&b, logging.Options{Format: format})
			if err != nil {
				t.Fatal(err)
			}
			log.With(of.with...).WithGroup("").Warn(of.message, of.args...)
			if b.Len() > logging.MaxRecord || strings.Count(b.String(), "\n") != 1 || !strings.Contains(b.String(), of.want) {
				t.Errorf("%s, %s: %d bytes: %.300s", name, format, b.Len(), b.String())
			}
			if !strings.HasPrefix(name, "many") && !strings.Contains(b.String(), " bytes)") {
				t.Errorf("%s, %s: nothing says that something is left out: %.300s", name, format, b.String())
			}
			if format == "json" && !json.Valid(b.Bytes()) {
				t.Errorf("%s: not JSON: %.300s", name, b.String())
			}
		}
	}
}
