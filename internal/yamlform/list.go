package yamlform

import (
	"bytes"
	"errors"
	"fmt"

	"gopkg.in/yaml.v3"
)

// Item is one map of a list that EditList writes.
type Item struct {
	From int    // which map of the old list it is; below 0: it is new
	Text []byte // what it says, as a YAML list of it alone; nil: what it says already
}

var errNoList = errors.New("edit YAML: not one document with a map that has the list")

// EditList returns a file in which the list under a key of its top has these maps. Comments stay, and so does the order of the keys of a map;
// new keys come last. Of a map that is removed the comments are removed too. Blank lines, and how far lines are indented, are not kept. An
// alias elsewhere in the file may refer to what has changed, so the caller must read the result and compare it.
func EditList(data []byte, key string, items []Item) (text []byte, err error) {
	docs, err := documents(data)
	if err != nil {
		return nil, fmt.Errorf("edit YAML: %w", err)
	}
	list := listOf(docs, key)
	if list == nil {
		return nil, errNoList
	}
	before := list.Content
	list.Content = make([]*yaml.Node, len(items))
	for i, item := range items {
		var n *yaml.Node
		if item.From >= 0 {
			if item.From >= len(before) {
				return nil, errNoList
			}
			n = before[item.From]
		}
		if n == nil && item.Text == nil {
			return nil, errNoList
		}
		if item.Text != nil {
			given, err := documents(item.Text)
			if err != nil {
				return nil, fmt.Errorf("edit YAML: %w", err)
			}
			if len(given) != 1 || len(given[0].Content) != 1 || len(given[0].Content[0].Content) != 1 {
				return nil, errNoList
			}
			one := given[0].Content[0].Content[0]
			if n == nil || n.Kind != yaml.MappingNode {
				n = one
			} else {
				assign(n, one)
			}
		}
		list.Content[i] = n
	}
	if len(before) == 0 {
		list.Style = 0 // [] stands in flow style
	}
	return encodeIndented(docs[0])
}

func encodeIndented(doc *yaml.Node) (text []byte, err error) {
	defer recovered(&err)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("edit YAML: %w", err)
	}
	if err := e.Close(); err != nil {
		return nil, fmt.Errorf("edit YAML: %w", err)
	}
	return b.Bytes(), nil
}

// listOf returns the list under a key of the only document, nil if there is none.
func listOf(docs []*yaml.Node, key string) *yaml.Node {
	if len(docs) != 1 || len(docs[0].Content) != 1 || docs[0].Content[0].Kind != yaml.MappingNode {
		return nil
	}
	top := docs[0].Content[0].Content
	for i := 0; i+1 < len(top); i += 2 {
		if top[i].Value == key && top[i+1].Kind == yaml.SequenceNode {
			return top[i+1]
		}
	}
	return nil
}

// assign gives a map the keys and values of another one. What is equal stays as it is written.
func assign(to, from *yaml.Node) {
	values := make(map[string]*yaml.Node, len(from.Content)/2)
	for i := 0; i+1 < len(from.Content); i += 2 {
		values[from.Content[i].Value] = from.Content[i+1]
	}
	kept := to.Content[:0:0]
	foot := "" // a comment below a key that is removed, which may be about what follows
	for i := 0; i+1 < len(to.Content); i += 2 {
		key, value := to.Content[i], to.Content[i+1]
		given, stays := values[key.Value]
		if !stays {
			foot = key.FootComment
			continue
		}
		delete(values, key.Value)
		if value.Kind != yaml.ScalarNode || given.Kind != yaml.ScalarNode || value.Value != given.Value || value.ShortTag() != given.ShortTag() {
			given.HeadComment, given.LineComment, given.FootComment = value.HeadComment, value.LineComment, value.FootComment
			value = given
		}
		kept = append(kept, key, value)
	}
	for i := 0; i+1 < len(from.Content); i += 2 {
		if _, isNew := values[from.Content[i].Value]; isNew {
			kept = append(kept, from.Content[i], from.Content[i+1])
		}
	}
	if last := len(kept) - 2; last >= 0 && foot != "" && kept[last].FootComment == "" {
		kept[last].FootComment = foot
	}
	to.Content = kept
}
