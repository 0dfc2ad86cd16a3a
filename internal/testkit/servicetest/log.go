package servicetest

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log is the output of a program so far. The zero value is empty.
type Log struct {
	mu     sync.Mutex
	text   []byte
	closed bool
	more   chan struct{} // closed at the next change; nil if no test waits for one
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.changed()
	return len(p), nil
}

// Close ends the log. Tests that wait for a line fail immediately.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed()
	return nil
}

func (l *Log) changed() {
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
}

// String is the whole text.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// With returns the lines that contain a text.
func (l *Log) With(text string) (lines []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// after returns the text from an offset on, and a channel that is closed when there is more. The channel is nil if
// nothing comes any more.
func (l *Log) after(offset int) (text string, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.more == nil {
		l.more = make(chan struct{})
	}
	return string(l.text[offset:]), l.more
}

// All waits for at least n lines with this message, and returns the fields of all that there are. The log has to be
// JSON. A line may come later than the answer to the call that it is about.
func (l *Log) All(t testing.TB, message string, n int) (lines []map[string]any) {
	t.Helper()
	offset := 0
	for range n {
		_, offset = l.Find(t, message, offset, func(line string) bool { return withMessage(line, message) != nil })
	}
	for line := range strings.Lines(l.String()) {
		if fields := withMessage(line, message); fields != nil {
			lines = append(lines, fields)
		}
	}
	return lines
}

// Wait waits for a line with this message and returns its fields. The log has to be JSON.
func (l *Log) Wait(t testing.TB, message string) (fields map[string]any) {
	t.Helper()
	l.Find(t, message, 0, func(line string) bool {
		fields = withMessage(line, message)
		return fields != nil
	})
	return fields
}

// withMessage returns the fields of a line if it has this message, otherwise nil.
func withMessage(line, message string) map[string]any {
	var fields map[string]any
	if json.Unmarshal([]byte(line), &fields) != nil || fields["@message"] != message {
		return nil
	}
	return fields
}

// Find waits for a line for which is returns true. It starts at an offset of the log, and returns the line, without its
// end, and the offset after it.
func (l *Log) Find(t testing.TB, what string, offset int, is func(line string) bool) (line string, next int) {
	t.Helper()
	for late := time.After(Patience); ; {
		text, more := l.after(offset)
		for {
			line, rest, whole := strings.Cut(text, "\n")
			if !whole && (more != nil || line == "") { // the last line may lack its end only if nothing more comes
				break
			}
			offset += len(text) - len(rest)
			if is(line) {
				return line, offset
			}
			text = rest
		}
		if more == nil {
			t.Fatalf("the log ended without %q:\n%s", what, l)
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%q was not logged within %s:\n%s", what, Patience, l)
		}
	}
}
