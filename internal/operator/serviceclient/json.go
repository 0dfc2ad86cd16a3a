package serviceclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// WriteJSON writes a Summary for programs.
func WriteJSON(to io.Writer, v any) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteMessage writes the answer of a service for programs, as the service itself writes JSON, with the names of the
// protos.
func WriteMessage(to io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return WriteJSON(to, json.RawMessage(text)) // WriteJSON makes the blanks uniform: protojson varies them
}

// WriteMessages writes answers of a service as a list.
func WriteMessages[M proto.Message](to io.Writer, all []M) error {
	list := []json.RawMessage{}
	for _, m := range all {
		var b bytes.Buffer
		if err := WriteMessage(&b, m); err != nil {
			return err
		}
		list = append(list, b.Bytes())
	}
	return WriteJSON(to, list)
}
