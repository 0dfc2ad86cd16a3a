package logging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// MaxRecord is the largest size of a log record, in bytes as written.
const MaxRecord = 16 << 10

var errTooLong = errors.New("the log record is too long")

// shortWriter writes records that are not too long.
type shortWriter struct{ io.Writer }

func (w shortWriter) Write(p []byte) (int, error) {
	if len(p) > MaxRecord {
		return 0, errTooLong
	}
	return w.Writer.Write(p) //nolint:wrapcheck // it returns the error of the writer below
}

// bounded is a handler whose records have at most MaxRecord bytes. It writes to a shortWriter. If a record is too long,
// bounded writes it with shorter values, which end with a mark, and finally without its values.
type bounded struct {
	slog.Handler
	bare slog.Handler // without attributes
}

func (b bounded) Handle(ctx context.Context, r slog.Record) error {
	err := b.Handler.Handle(ctx, r)
	for most := 2 << 10; errors.Is(err, errTooLong) && most >= 32; most /= 4 {
		err = b.Handler.Handle(ctx, shortened(&r, most))
	}
	if errors.Is(err, errTooLong) {
		last := slog.NewRecord(r.Time, r.Level, cut(r.Message, maxText), r.PC)
		last.AddAttrs(slog.Int("attributes_left_out", r.NumAttrs()))
		err = b.bare.Handle(ctx, last)
	}
	return err //nolint:wrapcheck // it is the handler's
}

// WithAttrs implements slog.Handler. Attributes of a logger are in all of its records, so they are short.
func (b bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	short := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		short[i] = shortAttr(a, maxText)
	}
	return bounded{b.Handler.WithAttrs(short), b.bare}
}

// WithGroup implements slog.Handler.
func (b bounded) WithGroup(name string) slog.Handler {
	return bounded{b.Handler.WithGroup(name), b.bare}
}

// shortened returns a record whose texts have at most this many bytes.
func shortened(r *slog.Record, most int) slog.Record {
	s := slog.NewRecord(r.Time, r.Level, cut(r.Message, most), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		s.AddAttrs(shortAttr(a, most))
		return true
	})
	return s
}

func shortAttr(a slog.Attr, most int) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		v = slog.StringValue(cut(v.String(), most))
	case slog.KindGroup:
		group := make([]slog.Attr, len(v.Group()))
		for i, member := range v.Group() {
			group[i] = shortAttr(member, most)
		}
		v = slog.GroupValue(group...)
	case slog.KindAny:
		if text := fmt.Sprint(v.Any()); len(text) > most {
			v = slog.StringValue(cut(text, most))
		}
	}
	return slog.Attr{Key: cut(a.Key, most), Value: v}
}

// cut returns the start of a text, with a mark that gives the text's length.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(text))
}
