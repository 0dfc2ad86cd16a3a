package serviceclient

import (
	"encoding/json"
	"io"
)

// WriteJSON writes an Answer, a Summary or Counters for programs.
func WriteJSON(to io.Writer, v any) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
