package yamlform

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

// MaxLevels is how deep values of one kind may nest: merges in merges, and lists and maps in a free-form map.
const MaxLevels = 32

// MaxExpanded returns how many values are read through aliases in a text; size is its length in bytes. The bound grows
// with the text, so that many short files do not cost more than one long file.
func MaxExpanded(size int) int { return min(10_000+16*size, 2_000_000) }

// Options control how a Reader reads.
type Options struct {
	// Places are the maps that a file of this language may have. A key in the wrong one gets an error that names the right
	// one; earlier places win.
	Places []*Map
	// Lenient accepts some probable mistakes with a warning instead of an error. If a key is given twice, its last value
	// counts. The keys in Ignored are ignored where they do not belong. Text after the end of a document is left out.
	Lenient bool
	Ignored []string
	// Hint returns a better message about an unknown key, or "".
	Hint func(key string, value Value) string
	// Meant suggests a correction for an unknown key that resembles no known key, or returns "". The key is in the map in,
	// which has the form m.
	Meant func(m *Map, in Value, key string, value Value) string
}

// Reader reads the values of one file, or of one set of plain values. It notes errors and continues, so that all
// errors of a file are reported together. It is for one goroutine.
type Reader struct {
	file     string
	o        Options
	errs     notes
	warnings notes
	steps    []step // the paths of plain values; nil for a file
	aliased  bool   // an alias was followed
	expanded int    // values read through aliases
	most     int    // how many of them may be
	size     int    // bytes of text read so far
	reported map[report]struct{}
	noZones  map[string]struct{} // names that were looked up and are no time zones
}

// report is an error or a warning about a node, read as a map of one form or as one key: a value may be read in
// several ways.
type report struct {
	at *yaml.Node
	as any // a *Map or a *Key
}

// repeated reports whether the same mistake was reported before, because several aliases lead to it. It is for messages
// that take long to make; ErrorAt drops the other repeats.
func (r *Reader) repeated(at *yaml.Node, as any) bool {
	if !r.aliased {
		return false
	}
	if _, again := r.reported[report{at, as}]; again {
		return true
	}
	if r.reported == nil {
		r.reported = make(map[report]struct{})
	}
	if len(r.reported) < MaxErrors {
		r.reported[report{at, as}] = struct{}{}
	}
	return false
}

// NewReader returns a reader whose errors name that file.
func NewReader(file string, o Options) *Reader { return &Reader{file: file, o: o} }

// Parse returns the documents of a text. Empty documents are left out: templates often leave some behind. If the text
// is not YAML, that is an error, and the documents before it are returned.
func (r *Reader) Parse(data []byte) []Value {
	r.size += len(data)
	r.most = MaxExpanded(r.size)
	if r.o.Lenient {
		data = r.untilEnd(data)
	}
	docs, err := documents(data)
	if err != nil {
		bad := syntaxError(r.file, data, err)
		r.ErrorAt(Position{bad.File, bad.Line, bad.Col}, "%s", bad.Msg)
	}
	var roots []Value
	for _, d := range docs {
		if d.Kind == yaml.DocumentNode {
			if len(d.Content) == 0 {
				continue
			}
			d = d.Content[0]
		}
		if root := (Value{r: r, at: d}); !root.IsNull() {
			roots = append(roots, root)
		}
	}
	return roots
}

// ParseOne returns the only document of a text, and whether it has no error. empty is the error about a text without a
// document, second the one about a second document.
func (r *Reader) ParseOne(data []byte, empty, second string) (doc Value, ok bool) {
	docs := r.Parse(data)
	switch {
	case r.Found() > 0:
	case len(docs) == 0:
		r.ErrorAt(Position{File: r.file, Line: 1, Col: 1}, "%s", empty)
	case len(docs) > 1:
		docs[1].Errorf("%s", second)
	}
	if r.Found() > 0 {
		return Value{}, false
	}
	return docs[0], true
}

// Errors returns the errors noted so far, in the order of the file.
func (r *Reader) Errors() []*Error { return r.errs.sorted() }

// Warnings returns the probable mistakes that were accepted, in the order of the file.
func (r *Reader) Warnings() []*Error { return r.warnings.sorted() }

// Found is how many errors were noted so far.
func (r *Reader) Found() int { return len(r.errs.all) + r.errs.more }

// Size is the number of bytes of text read so far. Bounds on the cost of a file are in proportion to it.
func (r *Reader) Size() int { return r.size }

// Lenient reports whether probable mistakes are accepted with a warning.
func (r *Reader) Lenient() bool { return r.o.Lenient }

// ErrorAt notes an error.
func (r *Reader) ErrorAt(at Position, format string, args ...any) {
	r.errs.add(r.aliased, at, "", format, args)
}

// WarnAt notes a warning, and how envoyproxy/ratelimit treats the file.
func (r *Reader) WarnAt(at Position, reference Reference, format string, args ...any) {
	r.warnings.add(r.aliased, at, reference, format, args)
}

// position returns the position of a node. The library gives lines from 1; a node that it made up itself has none.
func (r *Reader) position(n *yaml.Node) Position {
	if r.steps != nil {
		return Position{File: r.file + pathTo(r.steps, max(n.Line, 1))}
	}
	return Position{File: r.file, Line: max(n.Line, 1), Col: max(n.Column, 1)}
}

// documents parses all YAML documents in data, in order. When one is not YAML, the documents before it are
// returned with the error.
func documents(data []byte) (docs []*yaml.Node, err error) {
	defer recovered(&err)
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		n := new(yaml.Node)
		if err := d.Decode(n); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return docs, err
		}
		docs = append(docs, n)
	}
}

// recovered turns a panic of the library into an error. The library returns ordinary errors; a panic is a bug in it,
// and one file must not end the process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("yaml: %v", p)
	}
}
