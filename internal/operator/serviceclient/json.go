package serviceclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// WriteJSON writes an Answer, a Summary or Counters for programs.
func WriteJSON(to io.Writer, v any) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteMessage writes the answer of a service for programs, as the service itself writes JSON, with the names of the protos.
func WriteMessage(to io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil { // protojson varies the blanks
		return fmt.Errorf("write JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err = to.Write(b.Bytes())
	return err
}
