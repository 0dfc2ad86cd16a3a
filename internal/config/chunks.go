package config

import (
	"bytes"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The YAML library takes most of the time of loading: about a second for 100,000 rules on one core. A large file is
// therefore cut between the descriptors of its top-level list, and the pieces are read in parallel. Only the nodes of a few
// pieces are in memory at a time, so the garbage collector has less to do.
//
// The result must be the same as without cutting. So a file is cut only if it has the usual form (domain and descriptors
// in block style, descriptors last). If any piece has an error, the whole file is read again in one piece, and that result
// is used. A cut in a wrong place always causes an error: it leaves quotes or brackets open. Outside of them a line that
// begins with a dash at the list's indentation always begins an entry, so a cut there is right.
const (
	chunkedFrom = 512 << 10 // minimum size in bytes of a file that is cut
	chunkSize   = 128 << 10 // approximate size of a piece in bytes
)

// chunk is a piece of the top-level list.
type chunk struct {
	data  []byte
	lines int // number of lines before it in the file
}

// readInChunks reads a file in pieces. It returns nil if the file must be read as a whole.
func readInChunks(name string, data []byte) *source {
	if len(data) < chunkedFrom {
		return nil
	}
	return readCut(name, data, chunkSize)
}

func readCut(name string, data []byte, size int) *source {
	head, chunks := cut(data, size)
	if len(chunks) < 2 {
		return nil
	}
	r := newRuleReader(name, false, 0)
	docs := r.Parse(head)
	if len(docs) != 1 || r.Found() > 0 || !endsWithDescriptors(docs[0]) {
		return nil
	}
	domain := r.document(docs[0])
	if r.Found() > 0 {
		return nil
	}

	pieces := make([][]descriptor.NodeSpec, len(chunks))
	readers := make([]*ruleReader, len(chunks))
	var next atomic.Int64
	var failed atomic.Bool
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(chunks)) {
		workers.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(chunks) {
					return
				}
				readers[i] = newRuleReader(name, false, chunks[i].lines)
				readers[i].level = 1
				specs, ok := readChunk(readers[i], chunks[i].data)
				if !ok {
					failed.Store(true)
				}
				pieces[i] = specs
			}
		})
	}
	workers.Wait()
	if failed.Load() {
		return nil
	}

	s := &source{}
	expanded, total := 0, 0
	for i := range pieces {
		expanded += readers[i].Expanded()
		s.rules += readers[i].rules
		total += len(pieces[i])
	}
	domain.Children = make([]descriptor.NodeSpec, 0, total)
	for _, p := range pieces {
		domain.Children = append(domain.Children, p...)
	}
	domain.Children = r.unique(domain.Children)
	r.inheriting, r.unreserved = make(map[descriptor.Position]yamlform.Value), make(map[descriptor.Position]bool)
	for i := range readers {
		maps.Copy(r.inheriting, readers[i].inheriting)
		maps.Copy(r.unreserved, readers[i].unreserved)
		r.byEntry = r.byEntry || readers[i].byEntry
		r.regions = r.regions || readers[i].regions
	}
	r.finish(&domain)
	s.rules += r.rules
	for i := range readers { // a descriptor that cannot inherit is an error of its piece
		if readers[i].Found() > 0 {
			return nil
		}
	}
	if r.Found() > 0 || expanded > yamlform.MaxExpanded(len(data)) {
		return nil
	}
	s.domains = []descriptor.DomainSpec{domain}
	return s
}

// endsWithDescriptors reports whether the last key of a map is `descriptors`, without a value.
func endsWithDescriptors(top yamlform.Value) bool {
	last, empty := "", false
	for key, value := range top.Pairs() {
		last, empty = key.Written(), value.IsNull()
	}
	return last == "descriptors" && empty
}

func readChunk(r *ruleReader, data []byte) ([]descriptor.NodeSpec, bool) {
	docs := r.Parse(data)
	if len(docs) != 1 || !docs[0].IsList() {
		return nil, false
	}
	specs := r.descriptorList(docs[0].Items(), docs[0].Len())
	return specs, r.Found() == 0
}

// cut splits a file into the head, which is the text before the first descriptor, and pieces of about size bytes with the
// descriptors. It returns no pieces if the file does not have the usual form.
func cut(data []byte, size int) (head []byte, chunks []chunk) {
	// These characters end lines in YAML too.
	if bytes.IndexByte(data, '\r') >= 0 || bytes.Contains(data, []byte("\u0085")) ||
		bytes.Contains(data, []byte("\u2028")) || bytes.Contains(data, []byte("\u2029")) {
		return nil, nil
	}
	var (
		line   int  // number of the line that begins at index at
		list   bool // whether the line `descriptors:` has been seen
		indent = -1 // of the list's entries
		start  int  // of the current piece
		from   int  // its first line
	)
	for at := 0; at < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		text := data[at:end]
		lead := 0
		for lead < len(text) && text[lead] == ' ' {
			lead++
		}
		text = text[lead:]
		begins := text[0:min(2, len(text))]
		entry := string(begins) == "- " || string(begins) == "-\n"
		switch {
		case len(text) == 0 || text[0] == '\n' || text[0] == '#':
		case !list:
			rest, found := bytes.CutPrefix(text, []byte("descriptors:"))
			comment := bytes.TrimLeft(rest, " ")
			list = lead == 0 && found && (len(bytes.TrimSpace(rest)) == 0 || comment[0] == '#' && len(comment) < len(rest))
		case indent < 0:
			if !entry {
				return nil, nil
			}
			indent, head, start, from = lead, data[:at], at, line
		case lead > indent:
		case lead < indent || !entry:
			return nil, nil
		case at-start >= size:
			chunks = append(chunks, chunk{data[start:at], from})
			start, from = at, line
		}
		at = end
	}
	if indent < 0 {
		return nil, nil
	}
	return head, append(chunks, chunk{data[start:], from})
}
